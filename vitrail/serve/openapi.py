def describe_api(): return {}

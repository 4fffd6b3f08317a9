"""All benchmarks that need nothing but the package and its peers: `make bench`, or `python -m benchmarks`.

The others need pictures: `python -m benchmarks.loader PHOTOS`, `python -m benchmarks.dedup --data TINY_IMAGENET`.
"""

from benchmarks import load, memory

if __name__ == "__main__":
    load.main()
    memory.main(batches=10_000, num_workers=2)

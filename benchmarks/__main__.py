"""All benchmarks that need nothing but the package and its peers: `make bench`, or `python -m benchmarks`.

Others need pictures: `python -m benchmarks.dedup --data TINY_IMAGENET`, and `python -m benchmarks.export`. Training,
inference and loading beside timm and torchvision: `vitrail bench --peers`.
"""

from benchmarks import load, memory

if __name__ == "__main__":
    load.main()
    memory.main(batches=10_000, num_workers=2)

"""Errors that mean that memory has run out, as torch, CUDA's libraries, numpy and the system word them."""

import errno

import numpy as np
import pytest
import torch

from vitrail.errors import TrainingError
from vitrail.runtime.memory import GPU, MEMORY, SHARED, exhausted_memory, requested_size

CUDA = (
    "CUDA out of memory. Tried to allocate 2.44 GiB. GPU 0 has a total capacity of 15.77 GiB of which 1 GiB."
)
ALLOCATOR = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "1208033280 bytes. Error code 12 (Cannot allocate memory)"
)
SHM = (
    "unable to allocate shared memory(shm) for file </torch_19348_1859098698_0>: No space left on device (28)"
)
BUS = (
    "DataLoader worker (pid 4242) is killed by signal: Bus error. It is possible that dataloader's workers are out "
    "of shared memory. Please try to raise your shared memory limit."
)
IN_WORKER = f"Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback:\nRuntimeError: {SHM}\n"

EXHAUSTED = [
    (torch.OutOfMemoryError(CUDA), GPU),
    (torch.OutOfMemoryError("Allocation on device 0 would exceed allowed memory."), GPU),
    (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"), GPU),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), GPU),
    (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), GPU),
    (RuntimeError("NCCL error: unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'"), GPU),
    (RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB."), GPU),
    (RuntimeError("MPS backend out of memory (MPS allocated: 8 GB). Tried to allocate 1.00 GB"), GPU),
    (RuntimeError(ALLOCATOR), MEMORY),
    (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."), MEMORY),
    (MemoryError(), MEMORY),
    (MemoryError("Caught MemoryError in DataLoader worker process 0."), MEMORY),
    (RuntimeError("std::bad_alloc"), MEMORY),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), MEMORY),
    (RuntimeError("DataLoader worker (pid 4242) is killed by signal: Killed."), MEMORY),
    (RuntimeError("DataLoader worker (pid(s) 4242) exited unexpectedly"), MEMORY),
    (RuntimeError(SHM), SHARED),
    (RuntimeError(IN_WORKER), SHARED),
    (RuntimeError(BUS), SHARED),
    (RuntimeError("unable to write to file </torch_1_2_3>: No space left on device (28)"), SHARED),
    (OSError(errno.ENOSPC, "No space left on device", "/dev/shm/sem.x"), SHARED),
]


@pytest.mark.parametrize(("error", "kind"), EXHAUSTED)
def test_each_is_known_also_below_others(error, kind):
    assert exhausted_memory(error) == kind
    cause, context = TrainingError("a run that cannot go on"), RuntimeError("backend failed")
    cause.__cause__ = context.__context__ = error
    assert exhausted_memory(cause) == exhausted_memory(context) == kind


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        RuntimeError("CUDA error: device-side assert triggered"),
        ValueError("a memory of things past: std::bad_alloc"),
        OSError(errno.ENOSPC, "No space left on device", "/data/model.safetensors"),
        OSError(errno.ENOENT, "No such file or directory", "/dev/shm/x"),
        KeyError("memory"),
    ],
)
def test_others_are_not(error):
    assert exhausted_memory(error) == ""


def test_a_chain_that_bites_its_tail_ends():
    one, other = RuntimeError("a"), RuntimeError("b")
    one.__cause__, other.__cause__ = other, one
    assert exhausted_memory(one) == requested_size(one) == ""


def test_those_of_numpy_and_torch_here():
    """Asked for a petabyte, which no address space has room for."""
    with pytest.raises(MemoryError) as of_numpy:
        np.empty(1 << 50, np.uint8)
    with pytest.raises(RuntimeError) as of_torch:
        torch.empty(1 << 50, dtype=torch.uint8)
    assert exhausted_memory(of_numpy.value) == exhausted_memory(of_torch.value) == MEMORY
    assert requested_size(of_numpy.value) == "1.00 PiB"
    assert requested_size(of_torch.value) == "1125899.91 GB"


def test_how_much_was_asked_for():
    assert requested_size(torch.OutOfMemoryError(CUDA)) == "2.44 GiB"
    assert requested_size(RuntimeError(ALLOCATOR)) == "1.21 GB"
    assert requested_size(MemoryError()) == ""

"""Machine code that every program shares: reading tensors, making outputs, giving results back to Python.

The text is made for the layout of torch's tensors as it was found, compiled once and cached like any other code.
"""

from __future__ import annotations

import functools
from string import Template

import torch
from torch import Tensor

from isthmus.dialects.native_facts import TensorLayout
from isthmus.dialects.target import Target
from isthmus.runtime import cache, cpu, library
from isthmus.runtime.cpu import Loaded
from isthmus.runtime.layout import native_facts
from isthmus.runtime.result_memory import text_fields
from isthmus.runtime.result_memory_text import REUSE
from isthmus.runtime.support_text import CALL, HERE_ON_DEVICE, HERE_ON_HOST
from isthmus.runtime.workspace_text import WORKSPACE

CPU = torch.device("cpu")

SETTLE = Template("""
declare i32 @aoti_torch_get_dtype(ptr, ptr)
declare i32 @aoti_torch_get_dim(ptr, ptr)
declare i32 @aoti_torch_get_sizes(ptr, ptr)
declare i32 @aoti_torch_get_strides(ptr, ptr)
declare i32 @aoti_torch_copy_(ptr, ptr, i32)
declare i32 @aoti_torch_delete_tensor_object(ptr)
declare i32 @aoti_torch_empty_strided(i64, ptr, ptr, i32, i32, i32, ptr)

; A tensor in dtype, shape and strides as wanted, a copy where it is shared; null where dtype or shape differ.
define ptr @isthmus_settle(ptr %made, i64 %rank, ptr %sizes, ptr %strides, i32 %dtype, i1 %shared) #0 {
entry:
  %out = alloca ptr
  %numbers = alloca i64
  %array = alloca ptr
  %kind = alloca i32
  %s0 = call i32 @aoti_torch_get_dtype(ptr %made, ptr %kind)
  %made.dtype = load i32, ptr %kind
  %same.dtype = icmp eq i32 %made.dtype, %dtype
  %s1 = call i32 @aoti_torch_get_dim(ptr %made, ptr %numbers)
  %made.rank = load i64, ptr %numbers
  %same.rank = icmp eq i64 %made.rank, %rank
  %same = and i1 %same.dtype, %same.rank
  br i1 %same, label %shape, label %refuse
shape:
  %s2 = call i32 @aoti_torch_get_sizes(ptr %made, ptr %array)
  %made.sizes = load ptr, ptr %array
  %s3 = call i32 @aoti_torch_get_strides(ptr %made, ptr %array)
  %made.strides = load ptr, ptr %array
  br label %head
head:
  %k = phi i64 [ 0, %shape ], [ %next, %step ]
  %laid = phi i1 [ true, %shape ], [ %still, %step ]
  %more = icmp slt i64 %k, %rank
  br i1 %more, label %dim, label %done
dim:
  %a.size = getelementptr i64, ptr %sizes, i64 %k
  %want.size = load i64, ptr %a.size
  %b.size = getelementptr i64, ptr %made.sizes, i64 %k
  %have.size = load i64, ptr %b.size
  %fits = icmp eq i64 %want.size, %have.size
  br i1 %fits, label %step, label %refuse
step:
  %a.stride = getelementptr i64, ptr %strides, i64 %k
  %want.stride = load i64, ptr %a.stride
  %b.stride = getelementptr i64, ptr %made.strides, i64 %k
  %have.stride = load i64, ptr %b.stride
  %equal = icmp eq i64 %want.stride, %have.stride
  %single = icmp sle i64 %want.size, 1
  %fine = or i1 %equal, %single
  %still = and i1 %laid, %fine
  %next = add i64 %k, 1
  br label %head
done:
  %own = xor i1 %shared, true
  %keep = and i1 %laid, %own
  br i1 %keep, label %as_is, label %copy
as_is:
  ret ptr %made
copy:
  %s4 = call i32 @aoti_torch_empty_strided(i64 %rank, ptr %sizes, ptr %strides, i32 %dtype, $device, ptr %out)
  %new = load ptr, ptr %out
  %s5 = call i32 @aoti_torch_copy_(ptr %new, ptr %made, i32 0)
  %s6 = call i32 @aoti_torch_delete_tensor_object(ptr %made)
  ret ptr %new
refuse:
  %s7 = call i32 @aoti_torch_delete_tensor_object(ptr %made)
  ret ptr null
}
""")

ATTRIBUTES = "attributes #0 = { nounwind }\n"


def memory_text(layout: TensorLayout | None) -> str:
    """Give the text of the code that keeps memory for kernels and, where the layout is known, for large results."""
    return ATTRIBUTES + WORKSPACE + (REUSE.substitute(text_fields(layout)) if layout is not None else "")


def support_text(layout: TensorLayout | None, device: torch.device = CPU) -> str:
    """Give the text of the code around a call for tensors of a device; without a layout only what `@run` needs."""
    on_host = device == CPU
    where = {"device": f"i32 {int(not on_host)}, i32 {device.index or 0}", "device_index": str(device.index or 0)}
    if layout is None:
        return ATTRIBUTES + SETTLE.substitute(where)
    numbers = {name: str(getattr(layout, name)) for name in ("tensor", "storage", "data", "offset", "dtype", "keys")}
    here = HERE_ON_HOST if on_host else Template(HERE_ON_DEVICE).substitute(where)
    declared = "" if on_host else "declare i32 @aoti_torch_get_device_index(ptr, ptr)\n"
    return (
        ATTRIBUTES
        + SETTLE.substitute(where)
        + declared
        + CALL.substitute(
            numbers,
            **where,
            here=here,
            rank=layout.rank,
            inline=layout.inline,
            outline=layout.outline,
            inline_rank=TensorLayout.INLINE_RANK,
            first_keys=layout.plain_keys[0],
            last_keys=layout.plain_keys[-1],
        )
    )


@functools.cache
def support(device: torch.device = CPU) -> Loaded:
    """The shared code for tensors of a device, loaded.

    Memory is asked for once for a kernel or a large result: its code is compiled as it is written, in a fifth of the
    time.
    """
    layout, target = native_facts(device).layout, cpu.host_target()
    texts = {support_text(layout, device): 1, **({memory_text(layout): 0} if device == CPU else {})}
    objects = [_object(text, target, level) for text, level in texts.items()]
    return cpu.load(objects, _own_symbols())


def _object(text: str, target: Target, level: int) -> bytes:
    key = cache.digest("support", text, str(level), cpu.LLVM_VERSION, target.key)
    return cache.current().get_or_make(key, lambda: cpu.compile_text(text, target, level))


def _own_symbols() -> dict[str, int]:
    return {
        "isthmus_python": library.entry()[0],
        "isthmus_tensor_type": id(Tensor),
        "isthmus_parameter_type": id(torch.nn.Parameter),
    }


@functools.cache
def external_symbols(device: torch.device = CPU) -> dict[str, int]:
    """Addresses that programs of a device are linked with beside the functions that libraries export."""
    shared = support(device)
    return {**_own_symbols(), **{name: shared[name] for name in shared.names}}

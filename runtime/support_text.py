"""The text of the machine code that reads tensors, makes outputs and gives results back to Python.

Tables (arrays of i64) say what a program expects, so that the code of a program is short. Words that begin with `$` are
filled in by `support.py`: where the fields of torch's tensors lie, the keys of ordinary tensors, the device.
"""

from __future__ import annotations

from string import Template

CALL = Template("""
@isthmus_tensor_type = external global i8
@isthmus_parameter_type = external global i8
@_Py_NoneStruct = external global i8
declare i64 @PyLong_AsSsize_t(ptr)
declare void @PyErr_Clear()
declare void @Py_IncRef(ptr)
declare ptr @PyList_New(i64)
declare i32 @PyList_SetItem(ptr, i64, ptr)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @_Z16THPVariable_WrapRKN2at10TensorBaseE(ptr)

; The implementation of an ordinary tensor of the device; null for anything else.
define internal ptr @plain(ptr %object) #0 {
entry:
  %a.type = getelementptr i8, ptr %object, i64 8
  %type = load ptr, ptr %a.type
  %is.tensor = icmp eq ptr %type, @isthmus_tensor_type
  %is.parameter = icmp eq ptr %type, @isthmus_parameter_type
  %is = or i1 %is.tensor, %is.parameter
  br i1 %is, label %tensor, label %other
tensor:
  %a.impl = getelementptr i8, ptr %object, i64 $tensor
  %impl = load ptr, ptr %a.impl
  %a.keys = getelementptr i8, ptr %impl, i64 $keys
  %keys = load i64, ptr %a.keys
  %is.first = icmp eq i64 %keys, $first_keys
  %is.last = icmp eq i64 %keys, $last_keys
  %ordinary = or i1 %is.first, %is.last
  br i1 %ordinary, label %yes, label %other
yes:
$here
mine:
  ret ptr %impl
other:
  ret ptr null
}

; Sizes, then strides, of an implementation; the strides begin `step` words after the sizes.
define internal ptr @numbers(ptr %impl, i64 %rank) #0 {
entry:
  %high = icmp sgt i64 %rank, $inline_rank
  br i1 %high, label %out, label %in
in:
  %inline = getelementptr i8, ptr %impl, i64 $inline
  ret ptr %inline
out:
  %a.table = getelementptr i8, ptr %impl, i64 $outline
  %table = load ptr, ptr %a.table
  ret ptr %table
}

define internal ptr @data(ptr %impl) #0 {
entry:
  %a.storage = getelementptr i8, ptr %impl, i64 $storage
  %storage = load ptr, ptr %a.storage
  %a.data = getelementptr i8, ptr %storage, i64 $data
  %data = load ptr, ptr %a.data
  ret ptr %data
}

; A size of a tensor object; -1 where it is no ordinary tensor or has too few dimensions.
define i64 @isthmus_dimension(ptr %object, i64 %dim) #0 {
entry:
  %impl = call ptr @plain(ptr %object)
  %none = icmp eq ptr %impl, null
  br i1 %none, label %no, label %tensor
tensor:
  %a.rank = getelementptr i8, ptr %impl, i64 $rank
  %rank = load i64, ptr %a.rank
  %inside = icmp slt i64 %dim, %rank
  br i1 %inside, label %read, label %no
read:
  %table = call ptr @numbers(ptr %impl, i64 %rank)
  %a.size = getelementptr i64, ptr %table, i64 %dim
  %size = load i64, ptr %a.size
  ret i64 %size
no:
  ret i64 -1
}

; The value of an int that is not negative; -1 for anything else.
define i64 @isthmus_integer(ptr %object) #0 {
entry:
  %value = call i64 @PyLong_AsSsize_t(ptr %object)
  %bad = icmp slt i64 %value, 0
  br i1 %bad, label %clear, label %good
clear:
  call void @PyErr_Clear()
  ret i64 -1
good:
  ret i64 %value
}

; The memory of an arena of at least `bytes` bytes; null where it is smaller.
define ptr @isthmus_arena(ptr %object, i64 %bytes) #0 {
entry:
  %have = call i64 @isthmus_dimension(ptr %object, i64 0)
  %enough = icmp sge i64 %have, %bytes
  br i1 %enough, label %yes, label %no
yes:
  %a.impl = getelementptr i8, ptr %object, i64 $tensor
  %impl = load ptr, ptr %a.impl
  %data = call ptr @data(ptr %impl)
  ret ptr %data
no:
  ret ptr null
}

; table: count, then per tensor: position among objects, position among pointers, dtype, item size, rank, sizes,
; strides (-1: any). False where a tensor is not as it says.
define i1 @isthmus_read(ptr %objects, ptr %table, ptr %pointers) #0 {
entry:
  %count = load i64, ptr %table
  %first = getelementptr i64, ptr %table, i64 1
  br label %head
head:
  %n = phi i64 [ 0, %entry ], [ %n.next, %good ]
  %entry.at = phi ptr [ %first, %entry ], [ %entry.next, %good ]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %look, label %all
all:
  ret i1 true
no:
  ret i1 false
look:
  %position = load i64, ptr %entry.at
  %a.object = getelementptr ptr, ptr %objects, i64 %position
  %object = load ptr, ptr %a.object
  %impl = call ptr @plain(ptr %object)
  %none = icmp eq ptr %impl, null
  br i1 %none, label %no, label %dtype
dtype:
  %a.want.dtype = getelementptr i64, ptr %entry.at, i64 2
  %want.dtype = load i64, ptr %a.want.dtype
  %a.dtype = getelementptr i8, ptr %impl, i64 $dtype
  %dtype.16 = load i16, ptr %a.dtype
  %have.dtype = zext i16 %dtype.16 to i64
  %same.dtype = icmp eq i64 %want.dtype, %have.dtype
  %a.want.rank = getelementptr i64, ptr %entry.at, i64 4
  %rank = load i64, ptr %a.want.rank
  %a.rank = getelementptr i8, ptr %impl, i64 $rank
  %have.rank = load i64, ptr %a.rank
  %same.rank = icmp eq i64 %rank, %have.rank
  %same = and i1 %same.dtype, %same.rank
  br i1 %same, label %shape, label %no
shape:
  %have.sizes = call ptr @numbers(ptr %impl, i64 %rank)
  %high = icmp sgt i64 %rank, $inline_rank
  %step = select i1 %high, i64 %rank, i64 $inline_rank
  %have.strides = getelementptr i64, ptr %have.sizes, i64 %step
  %want.sizes = getelementptr i64, ptr %entry.at, i64 5
  %want.strides = getelementptr i64, ptr %want.sizes, i64 %rank
  br label %dim.head
dim.head:
  %d = phi i64 [ 0, %shape ], [ %d.next, %dim.good ]
  %dim.more = icmp slt i64 %d, %rank
  br i1 %dim.more, label %dim, label %good
dim:
  %a.want.size = getelementptr i64, ptr %want.sizes, i64 %d
  %want.size = load i64, ptr %a.want.size
  %a.have.size = getelementptr i64, ptr %have.sizes, i64 %d
  %have.size = load i64, ptr %a.have.size
  %same.size = icmp eq i64 %want.size, %have.size
  %a.want.stride = getelementptr i64, ptr %want.strides, i64 %d
  %want.stride = load i64, ptr %a.want.stride
  %a.have.stride = getelementptr i64, ptr %have.strides, i64 %d
  %have.stride = load i64, ptr %a.have.stride
  %same.stride = icmp eq i64 %want.stride, %have.stride
  %any.stride = icmp slt i64 %want.stride, 0
  %single = icmp sle i64 %want.size, 1
  %fine.1 = or i1 %same.stride, %any.stride
  %fine.2 = or i1 %fine.1, %single
  %fine = and i1 %same.size, %fine.2
  br i1 %fine, label %dim.good, label %no
dim.good:
  %d.next = add i64 %d, 1
  br label %dim.head
good:
  %data = call ptr @data(ptr %impl)
  %a.offset = getelementptr i8, ptr %impl, i64 $offset
  %offset = load i64, ptr %a.offset
  %a.item = getelementptr i64, ptr %entry.at, i64 3
  %item = load i64, ptr %a.item
  %bytes = mul i64 %offset, %item
  %begin = getelementptr i8, ptr %data, i64 %bytes
  %a.index = getelementptr i64, ptr %entry.at, i64 1
  %index = load i64, ptr %a.index
  %a.pointer = getelementptr ptr, ptr %pointers, i64 %index
  store ptr %begin, ptr %a.pointer
  %twice = mul i64 %rank, 2
  %words = add i64 %twice, 5
  %entry.next = getelementptr i64, ptr %entry.at, i64 %words
  %n.next = add i64 %n, 1
  br label %head
}

; table: count, then per output: number, dtype, rank, sizes, strides. Makes fresh tensors; false (and nothing is made)
; where memory is short.
define i1 @isthmus_make(ptr %table, ptr %made, ptr %pointers) #0 {
entry:
  %count = load i64, ptr %table
  %first = getelementptr i64, ptr %table, i64 1
  br label %head
head:
  %n = phi i64 [ 0, %entry ], [ %n.next, %good ]
  %at = phi ptr [ %first, %entry ], [ %next, %good ]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %make, label %all
all:
  ret i1 true
make:
  %a.dtype = getelementptr i64, ptr %at, i64 1
  %dtype.64 = load i64, ptr %a.dtype
  %dtype = trunc i64 %dtype.64 to i32
  %a.rank = getelementptr i64, ptr %at, i64 2
  %rank = load i64, ptr %a.rank
  %sizes = getelementptr i64, ptr %at, i64 3
  %strides = getelementptr i64, ptr %sizes, i64 %rank
  %slot = getelementptr ptr, ptr %made, i64 %n
  %status = call i32 @aoti_torch_empty_strided(i64 %rank, ptr %sizes, ptr %strides, i32 %dtype, $device, ptr %slot)
  %ok = icmp eq i32 %status, 0
  br i1 %ok, label %good, label %undo
good:
  %handle = load ptr, ptr %slot
  %impl = load ptr, ptr %handle
  %data = call ptr @data(ptr %impl)
  %number = load i64, ptr %at
  %a.pointer = getelementptr ptr, ptr %pointers, i64 %number
  store ptr %data, ptr %a.pointer
  %next = getelementptr i64, ptr %strides, i64 %rank
  %n.next = add i64 %n, 1
  br label %head
undo:
  call void @let_go(ptr %made, i64 %n)
  ret i1 false
}

define internal void @let_go(ptr %handles, i64 %count) #0 {
entry:
  br label %head
head:
  %n = phi i64 [ 0, %entry ], [ %n.next, %next ]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %look, label %all
all:
  ret void
look:
  %slot = getelementptr ptr, ptr %handles, i64 %n
  %handle = load ptr, ptr %slot
  %none = icmp eq ptr %handle, null
  br i1 %none, label %next, label %free
free:
  %s = call i32 @aoti_torch_delete_tensor_object(ptr %handle)
  br label %next
next:
  %n.next = add i64 %n, 1
  br label %head
}

; table: count, then per result: kind (0 made, 1 handle, 2 argument), number. Gives the list of results.
define ptr @isthmus_give(ptr %table, ptr %made, ptr %handles, ptr %objects) #0 {
entry:
  %count = load i64, ptr %table
  %list = call ptr @PyList_New(i64 %count)
  br label %head
head:
  %n = phi i64 [ 0, %entry ], [ %n.next, %put ]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %look, label %all
all:
  ret ptr %list
look:
  %n.2 = mul i64 %n, 2
  %k.kind = add i64 %n.2, 1
  %k.number = add i64 %n.2, 2
  %a.kind = getelementptr i64, ptr %table, i64 %k.kind
  %kind = load i64, ptr %a.kind
  %a.number = getelementptr i64, ptr %table, i64 %k.number
  %number = load i64, ptr %a.number
  %is.argument = icmp eq i64 %kind, 2
  br i1 %is.argument, label %argument, label %tensor
argument:
  %a.object = getelementptr ptr, ptr %objects, i64 %number
  %object = load ptr, ptr %a.object
  call void @Py_IncRef(ptr %object)
  br label %put
tensor:
  %is.made = icmp eq i64 %kind, 0
  %array = select i1 %is.made, ptr %made, ptr %handles
  %a.handle = getelementptr ptr, ptr %array, i64 %number
  %handle = load ptr, ptr %a.handle
  %wrapped = call ptr @_Z16THPVariable_WrapRKN2at10TensorBaseE(ptr %handle)
  %s = call i32 @aoti_torch_delete_tensor_object(ptr %handle)
  br label %put
put:
  %item = phi ptr [ %object, %argument ], [ %wrapped, %tensor ]
  %t = call i32 @PyList_SetItem(ptr %list, i64 %n, ptr %item)
  %n.next = add i64 %n, 1
  br label %head
}

; Free what a failed call made; gives the pair (status, error word).
define ptr @isthmus_fail(i32 %status, i64 %word, ptr %made, i64 %count, ptr %handles, i64 %handle.count) #0 {
entry:
  call void @let_go(ptr %made, i64 %count)
  call void @let_go(ptr %handles, i64 %handle.count)
  %pair = call ptr @PyTuple_New(i64 2)
  %status.64 = sext i32 %status to i64
  %first = call ptr @PyLong_FromLongLong(i64 %status.64)
  %s0 = call i32 @PyTuple_SetItem(ptr %pair, i64 0, ptr %first)
  %second = call ptr @PyLong_FromLongLong(i64 %word)
  %s1 = call i32 @PyTuple_SetItem(ptr %pair, i64 1, ptr %second)
  ret ptr %pair
}

; None: Python has to look closer.
define ptr @isthmus_decline() #0 {
entry:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
}
""")

HERE_ON_HOST = "  br label %mine"

HERE_ON_DEVICE = """
  %place = alloca i32
  %status = call i32 @aoti_torch_get_device_index(ptr %a.impl, ptr %place)
  %index = load i32, ptr %place
  %is.here = icmp eq i32 %index, $device_index
  br i1 %is.here, label %mine, label %other
"""
"""Whether a tensor with the keys of the device's kind is on the very device."""

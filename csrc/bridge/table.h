// The functions of torch that _C calls, as a table of plain C.
//
// Each release of torch lays out its classes in its own way, so a shared object per release fills the table
// (bridge.cpp), and _C has no symbol of torch. `zerocopy build-bridge` compiles this file and bridge.cpp on
// the user's machine: they include nothing else of zerocopy.
//
// A function that returns a pointer returns null with a Python exception set, unless it says otherwise. The
// GIL is held in each call, except in those that say "any thread".
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>

// Changes with every change of this file.
#define ZEROCOPY_BRIDGE_ABI 1

extern "C" {

struct ZerocopyTensorView {
  std::int32_t dtype;  // what scalar_type() returned
  std::int32_t requires_grad;
  std::int32_t conjugate;
  std::int32_t negative;
  std::int64_t offset;  // in elements, as the sizes and strides
  std::size_t dimensions;
  const std::int64_t* size;
  const std::int64_t* stride;
};

// The functions of _C that a bridge calls. An owner keeps the bytes of a storage alive.
struct ZerocopyBridgeHost {
  std::uint32_t abi;
  void (*share_owner)(void* owner);    // any thread
  void (*release_owner)(void* owner);  // any thread, perhaps after the interpreter is gone
};

struct ZerocopyBridge {
  std::uint32_t abi;
  std::uint32_t size;  // of this struct
  const char* stamp;

  int (*is_dtype)(PyObject* object);
  std::int32_t (*scalar_type)(PyObject* dtype);
  std::int64_t (*item_size)(std::int32_t dtype);
  int (*is_complex)(std::int32_t dtype);
  int (*is_floating_point)(std::int32_t dtype);

  // A storage is one reference to torch's StorageImpl.
  // A CPU storage over bytes whose owner it keeps. The share of the owner is taken, on failure too.
  void* (*storage_over)(void* data, std::uint64_t size, void* owner);
  // A part of another storage, which it keeps. The caller has checked the range.
  void* (*storage_within)(void* storage, std::uint64_t offset, std::uint64_t size);
  // The bytes of another storage, on its device, kept alive by the owner alone. The share is taken.
  void* (*storage_kept)(void* storage, void* owner);
  void* (*storage_of)(PyObject* storage);
  void (*storage_release)(void* storage);          // any thread
  std::uint64_t (*storage_nbytes)(void* storage);  // any thread
  void* (*storage_data)(void* storage);            // any thread
  int (*storage_is_cpu)(void* storage);            // any thread
  // A new share in the owner that storage_over() or storage_kept() took. Null without an exception if the
  // storage is another's.
  void* (*storage_owner)(void* storage);

  PyObject* (*wrap)(void* storage);                                    // a torch.UntypedStorage
  PyObject* (*tensor)(void* storage, const ZerocopyTensorView* view);  // a torch.Tensor; the view was checked

  void* (*weak_of)(void* storage);
  void (*weak_release)(void* weak);  // any thread
  void* (*weak_lock)(void* weak);    // a storage; null without an exception if it is gone

  // A tensor without a storage, of a subclass of torch.Tensor that adds nothing to its layout. All its
  // operations come to the class's __torch_dispatch__.
  PyObject* (*placeholder)(const ZerocopyTensorView* view, PyTypeObject* type);
};

// The one name that a bridge exports, as zerocopy_bridge. Null if the host has another ABI.
using ZerocopyBridgeEntry = const ZerocopyBridge* (*)(const ZerocopyBridgeHost* host);

}  // extern "C"

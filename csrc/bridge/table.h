// The functions of torch that _C calls, as a table of plain C functions.
//
// Releases of torch lay out their classes differently. So each release has a shared object that
// fills the table (bridge.cpp), and _C uses no symbol of torch. `zerocopy build-bridge` compiles
// this file and bridge.cpp on the user's machine, so both include no other file of zerocopy.
//
// A function that returns a pointer returns null with a Python exception set, unless its comment
// says otherwise. Callers hold the GIL, except for functions marked "any thread".
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>

// Increase this with each change of the table.
#define ZEROCOPY_BRIDGE_ABI 1

extern "C" {

struct ZerocopyTensorView {
  std::int32_t dtype;  // a result of scalar_type()
  std::int32_t requires_grad;
  std::int32_t conjugate;
  std::int32_t negative;
  std::int64_t offset;  // in elements, as the sizes and strides
  std::size_t dimensions;
  const std::int64_t* size;
  const std::int64_t* stride;
};

// Functions of _C that a bridge calls. An owner keeps the bytes of a storage alive.
struct ZerocopyBridgeHost {
  std::uint32_t abi;
  void (*retain_owner)(void* owner);   // any thread
  void (*release_owner)(void* owner);  // any thread, perhaps after the interpreter has ended
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
  //
  // Makes a CPU storage that keeps the owner of its bytes. Takes the reference to the owner, also
  // on failure.
  void* (*storage_over)(void* data, std::uint64_t size, void* owner);
  // Makes a storage over a part of another, which it keeps. The caller has checked the range.
  void* (*storage_within)(void* storage, std::uint64_t offset, std::uint64_t size);
  // Makes a storage over the bytes of another, on its device. Only the owner, whose reference is
  // taken, keeps the bytes alive.
  void* (*storage_kept)(void* storage, void* owner);
  void* (*storage_of)(PyObject* storage);
  void (*storage_release)(void* storage);          // any thread
  std::uint64_t (*storage_nbytes)(void* storage);  // any thread
  void* (*storage_data)(void* storage);            // any thread
  int (*storage_is_cpu)(void* storage);            // any thread
  // Returns a new reference to the owner that storage_over() or storage_kept() took. Null without
  // an exception if other code made the storage.
  void* (*storage_owner)(void* storage);

  PyObject* (*wrap)(void* storage);                                    // a torch.UntypedStorage
  PyObject* (*tensor)(void* storage, const ZerocopyTensorView* view);  // a torch.Tensor; the view was checked

  void* (*weak_of)(void* storage);
  void (*weak_release)(void* weak);  // any thread
  void* (*weak_lock)(void* weak);    // a storage; null without an exception if the storage is gone

  // Makes a tensor without a storage, of a subclass of torch.Tensor with the same layout. All its
  // operations go to the class's __torch_dispatch__.
  PyObject* (*placeholder)(const ZerocopyTensorView* view, PyTypeObject* type);
};

// The type of zerocopy_bridge, the only exported name. It returns null if the host has another ABI.
using ZerocopyBridgeEntry = const ZerocopyBridge* (*)(const ZerocopyBridgeHost* host);

}  // extern "C"

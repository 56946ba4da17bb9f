// The GIL, let go and taken, in threads that may outlive the interpreter.
//
// Before Python 3.14 a daemon thread that asks for the GIL while the interpreter ends is ended by
// pthread_exit, which unwinds the stack as an exception does: through pybind11's guards, whose
// destructors are noexcept, that aborts the process, and through ours it would drop references
// without the GIL. As 3.14 does, such a thread sleeps until the process is gone.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace zerocopy {

template <typename Take>
auto take_gil(Take take) noexcept {
  try {
    return take();
  } catch (...) {  // nothing else comes out of C, and by its name it would be a reference to null
    for (;;) ::pause();
  }
}

// An owner of Python objects may die in a static destructor, after the interpreter. Taking the GIL would then
// hang or crash the process, so the objects are leaked: the process is about to end.
inline bool interpreter_is_ending() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() == 0 || Py_IsFinalizing() != 0;
#else
  return Py_IsInitialized() == 0 || _Py_IsFinalizing() != 0;
#endif
}

class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;
  ~GilReleased() {
    take_gil([this] { PyEval_RestoreThread(state_); });
  }

 private:
  PyThreadState* state_;
};

class GilTaken {
 public:
  GilTaken() : state_(take_gil([] { return PyGILState_Ensure(); })) {}
  GilTaken(const GilTaken&) = delete;
  GilTaken& operator=(const GilTaken&) = delete;
  ~GilTaken() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

}  // namespace zerocopy

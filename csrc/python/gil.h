// Releases and takes the GIL, in threads that may outlive the interpreter.
//
// Before Python 3.14, a daemon thread that takes the GIL during finalization is ended by
// pthread_exit, which unwinds the stack like an exception. In a noexcept function, such as the
// destructor of one of pybind11's guards, that aborts the process. In the guards below it would drop
// references without the GIL. As in 3.14, such a thread sleeps until the process ends.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace zerocopy {

template <typename Function>
auto sleep_if_ended(Function function) noexcept {
  try {
    return function();
  } catch (...) {  // only pthread_exit throws here; catching it by name would bind a null reference
    for (;;) ::pause();
  }
}

// Owners of Python objects may be destroyed after the interpreter, in static destructors. Taking
// the GIL then would hang or crash, so the objects are leaked: the process is about to end.
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
    sleep_if_ended([this] { PyEval_RestoreThread(state_); });
  }

 private:
  PyThreadState* state_;
};

class GilTaken {
 public:
  GilTaken() : state_(sleep_if_ended([] { return PyGILState_Ensure(); })) {}
  GilTaken(const GilTaken&) = delete;
  GilTaken& operator=(const GilTaken&) = delete;
  ~GilTaken() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

// Drops Python objects from any thread. An object may take the GIL anew when it is freed: an mmap does.
template <typename Release>
void release_with_gil(Release release) noexcept {
  if (interpreter_is_ending()) return;
  const GilTaken gil;
  sleep_if_ended(release);
}

}  // namespace zerocopy

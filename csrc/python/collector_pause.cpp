#include "python/collector_pause.h"

#include <cstddef>

namespace py = pybind11;

namespace zerocopy {
namespace {

// Threads may be in the block at the same time. The GIL guards the members.
class CollectorPause {
 public:
  void enter() {
    if (entered_++ == 0) was_on_ = PyGC_Disable() != 0;
  }

  void leave() {
    if (entered_ == 0) return;  // a signal handler raised before enter(), or enter() was before a fork
    if (--entered_ == 0 && was_on_) PyGC_Enable();
  }

  void leave_all() {
    if (entered_ != 0) entered_ = 1;
    leave();
  }

 private:
  std::size_t entered_ = 0;
  bool was_on_ = false;
};

}  // namespace

void register_collector_pause(py::module_& module) {
  py::class_<CollectorPause>(module, "CollectorPause")
      .def(py::init())
      .def("enter", &CollectorPause::enter)
      .def("leave", &CollectorPause::leave)
      .def("leave_all", &CollectorPause::leave_all);
}

}  // namespace zerocopy

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

  void exit() {
    if (entered_ == 0) return;  // entered before a fork
    if (--entered_ == 0 && was_on_) PyGC_Enable();
  }

  void leave_all() {
    if (entered_ != 0) entered_ = 1;
    exit();
  }

 private:
  std::size_t entered_ = 0;
  bool was_on_ = false;
};

}  // namespace

void register_collector_pause(py::module_& module) {
  py::class_<CollectorPause>(module, "CollectorPause")
      .def(py::init())
      .def("__enter__", &CollectorPause::enter)
      .def("__exit__", [](CollectorPause& pause, const py::args&) { pause.exit(); })
      .def("leave_all", &CollectorPause::leave_all);
}

}  // namespace zerocopy

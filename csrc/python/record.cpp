#include "python/record.h"

#include <vector>

namespace zerocopy {

RecordType::RecordType(const char* name, std::initializer_list<const char*> fields) {
  std::vector<PyStructSequence_Field> described;
  for (const char* field : fields) described.push_back({field, nullptr});
  described.push_back({nullptr, nullptr});
  PyStructSequence_Desc description{name, nullptr, described.data(), static_cast<int>(fields.size())};
  type_ = PyStructSequence_NewType(&description);
  if (type_ == nullptr) throw pybind11::error_already_set();
}

}  // namespace zerocopy

// The tensors of a program of torch.export or AOTInductor, as the JSON in its archive lists them.
//
//   data/weights/model_weights_config.json, data/constants/model_constants_config.json:
//     {"config": {"fc.weight": {"path_name": "weight_0", "is_param": true, "use_pickle": false,
//                  "tensor_meta": {"dtype": 7, "sizes": [{"as_int": 4}], "strides": …, …}}, …}}
//   data/aotinductor/model/weights_config.json:
//     {"fc.weight": ["weight_0", [4], [1], 0], …}          views of tensors that torch.save wrote
//
// Written by torch/export/pt2_archive/_package.py; the numbers are those of torch/_export/serde/schema.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zerocopy {

// The elements that a tensor shows of a payload. All numbers count elements.
struct PayloadView {
  std::vector<std::int64_t> size;
  std::vector<std::int64_t> stride;
  std::int64_t offset = 0;
};

struct Payload {
  std::string name;  // of the weight or constant
  std::string path;  // its record in the folder of its kind
  bool is_parameter = false;
  bool is_pickled = false;          // its record is a file of its own that torch.save wrote
  std::optional<PayloadView> view;  // none: as the pickle says, or an object that is not a tensor
  std::string_view dtype;           // torch's name; empty if the pickle says it
  bool requires_grad = false;
  std::string device = "cpu";
};

// The first form of JSON above, and the second. Both throw FormatError, or UnsupportedError for what a later
// release may write. `what` names the record in messages.
std::vector<Payload> read_payloads(std::string_view text, const std::string& what);
std::vector<Payload> read_compiled_payloads(std::string_view text, const std::string& what);

}  // namespace zerocopy

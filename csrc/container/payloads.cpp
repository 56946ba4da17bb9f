#include "container/payloads.h"

#include <simdjson.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "memory/errors.h"
#include "text/name_table.h"

namespace zerocopy {
namespace {

namespace json = simdjson::ondemand;

constexpr std::size_t kMaxDimensions = 64;  // the limit of torch
constexpr std::int64_t kStrided = 7;        // of schema.Layout

// torch's dtypes by the numbers of schema.ScalarType. Those between belong to no exported tensor.
struct NumberedDtype {
  std::int64_t number;
  std::string_view name;
};
constexpr std::array kDtypes{
    NumberedDtype{1, "uint8"},
    NumberedDtype{2, "int8"},
    NumberedDtype{3, "int16"},
    NumberedDtype{4, "int32"},
    NumberedDtype{5, "int64"},
    NumberedDtype{6, "float16"},
    NumberedDtype{7, "float32"},
    NumberedDtype{8, "float64"},
    NumberedDtype{9, "complex32"},
    NumberedDtype{10, "complex64"},
    NumberedDtype{11, "complex128"},
    NumberedDtype{12, "bool"},
    NumberedDtype{13, "bfloat16"},
    NumberedDtype{28, "uint16"},
    NumberedDtype{29, "float8_e4m3fn"},
    NumberedDtype{30, "float8_e5m2"},
    NumberedDtype{31, "float8_e4m3fnuz"},
    NumberedDtype{32, "float8_e5m2fnuz"},
    NumberedDtype{33, "float8_e8m0fnu"},
    NumberedDtype{34, "uint32"},
    NumberedDtype{35, "uint64"},
};

class Parser {
 public:
  Parser(std::string_view text, std::string what) : what_(std::move(what)), text_(text) {}

  std::vector<Payload> exported() {
    std::vector<Payload> payloads;
    bool found = false;
    for_each_field(root(), "the file", [&](std::string_view key, json::value value) {
      if (key != "config") return;
      if (std::exchange(found, true)) fail("\"config\" twice");
      payloads = each_payload(object_in(value, "config"), &Parser::of_program);
    });
    if (!found) fail("\"config\" is missing");
    require_end();
    return payloads;
  }

  std::vector<Payload> compiled() {
    std::vector<Payload> payloads = each_payload(root(), &Parser::of_package);
    require_end();
    return payloads;
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const { throw FormatError(what_ + ": " + reason); }
  [[noreturn]] void fail(const Payload& payload, const std::string& reason) const {
    fail("tensor " + quote(payload.name) + ": " + reason);
  }
  [[noreturn]] void unsupported(const Payload& payload, const std::string& reason) const {
    throw UnsupportedError(what_ + ": tensor " + quote(payload.name) + " " + reason);
  }

  void require(simdjson::error_code error, std::string_view where) const {
    if (error == simdjson::SUCCESS) return;
    fail(std::string(where) + " is not as torch writes it (" + simdjson::error_message(error) + ")");
  }

  json::object root() {
    if (parser_.allocate(text_.size()) != simdjson::SUCCESS) throw std::bad_alloc();
    require(parser_.iterate(text_).get(document_), "the file");
    json::object fields;
    require(document_.get_object().get(fields), "the file");
    return fields;
  }

  json::object object_in(json::value value, std::string_view where) const {
    json::object object;
    require(value.get_object().get(object), where);
    return object;
  }

  // Calls `call` with each name and value.
  template <typename Call>
  void for_each_field(json::object object, std::string_view where, const Call& call) const {
    for (auto each : object) {
      json::field field;
      require(std::move(each).get(field), where);
      std::string_view key;
      require(field.unescaped_key().get(key), where);
      call(key, field.value());
    }
  }

  std::vector<Payload> each_payload(json::object object, void (Parser::*read)(Payload&, json::value) const) {
    std::vector<Payload> payloads;
    for_each_field(object, "the list of tensors", [&](std::string_view name, json::value value) {
      payloads.emplace_back().name = name;
      (this->*read)(payloads.back(), value);
      require_simple(payloads.back());
    });
    NameTable<NameHash> seen(payloads.size());
    for (const Payload& payload : payloads) {
      if (!seen.insert(payload.name, 0).second) fail("the name " + quote(payload.name) + " twice");
    }
    return payloads;
  }

  void require_end() {
    if (document_.current_location().error() != simdjson::OUT_OF_BOUNDS) fail("bytes after its JSON object");
  }

  // A record of the archive is named by a name of its own folder.
  void require_simple(const Payload& payload) const {
    if (payload.path.empty() || payload.path.find('/') != std::string::npos)
      fail(payload, "its path_name is " + quote(payload.path));
  }

  // A field of a JSON object, and the function that reads it.
  struct Field {
    std::string_view name;
    bool is_required;
    void (*read)(const Parser& self, Payload& payload, json::value value);
  };

  void read_fields(Payload& payload, json::value value, std::string_view where,
                   std::span<const Field> fields) const {
    std::vector<bool> found(fields.size());
    for_each_field(object_in(value, where), where, [&](std::string_view key, json::value field) {
      const auto known = std::ranges::find(fields, key, &Field::name);
      if (known == fields.end()) return;  // of a later release
      const auto number = static_cast<std::size_t>(known - fields.begin());
      if (found[number]) fail(payload, "the field " + quote(key) + " twice");
      found[number] = true;
      known->read(*this, payload, field);
    });
    for (std::size_t i = 0; i < fields.size(); ++i) {
      if (fields[i].is_required && !found[i]) fail(payload, std::string(fields[i].name) + " is missing");
    }
  }

  void of_program(Payload& payload, json::value value) const {
    static constexpr std::array<Field, 4> kFields{{
        {"path_name", true,
         [](const Parser& self, Payload& made, json::value field) { made.path = self.text_in(made, field); }},
        {"is_param", true,
         [](const Parser& self, Payload& made, json::value field) {
           made.is_parameter = self.flag_in(made, field);
         }},
        {"use_pickle", true,
         [](const Parser& self, Payload& made, json::value field) {
           made.is_pickled = self.flag_in(made, field);
         }},
        {"tensor_meta", false,
         [](const Parser& self, Payload& made, json::value field) { self.read_meta(made, field); }},
    }};
    read_fields(payload, value, "a tensor", kFields);
    if (payload.is_pickled) {
      payload.view.reset();  // the pickle decides, as in torch
    } else if (!payload.view) {
      fail(payload, "tensor_meta is missing");
    }
  }

  void read_meta(Payload& payload, json::value value) const {
    static constexpr std::array<Field, 7> kFields{{
        {"dtype", true,
         [](const Parser& self, Payload& made, json::value field) {
           made.dtype = self.dtype_in(made, field);
         }},
        {"sizes", true,
         [](const Parser& self, Payload& made, json::value field) {
           made.view->size = self.numbers_in(made, field, /*symbolic=*/true);
         }},
        {"strides", true,
         [](const Parser& self, Payload& made, json::value field) {
           made.view->stride = self.numbers_in(made, field, /*symbolic=*/true);
         }},
        {"storage_offset", true,
         [](const Parser& self, Payload& made, json::value field) {
           made.view->offset = self.symbolic_in(made, field);
         }},
        {"layout", false,
         [](const Parser& self, Payload& made, json::value field) {
           if (self.integer_in(made, field) != kStrided) self.unsupported(made, "is not strided");
         }},
        {"requires_grad", false,
         [](const Parser& self, Payload& made, json::value field) {
           made.requires_grad = self.flag_in(made, field);
         }},
        {"device", false,
         [](const Parser& self, Payload& made, json::value field) {
           made.device = self.device_in(made, field);
         }},
    }};
    if (is_null(value)) return;
    payload.view.emplace();
    read_fields(payload, value, "tensor_meta", kFields);
  }

  // ["weight_0", [sizes], [strides], offset]
  void of_package(Payload& payload, json::value value) const {
    json::array items;
    require(value.get_array().get(items), "a tensor");
    payload.is_pickled = true;
    PayloadView view;
    std::size_t n = 0;
    for (auto each : items) {
      json::value item;
      require(std::move(each).get(item), "a tensor");  // NOLINT(performance-move-const-arg): get() wants it
      if (n == 0) payload.path = text_in(payload, item);
      if (n == 1) view.size = numbers_in(payload, item, /*symbolic=*/false);
      if (n == 2) view.stride = numbers_in(payload, item, /*symbolic=*/false);
      if (n == 3) view.offset = integer_in(payload, item);
      ++n;
    }
    if (n != 4) fail(payload, "expected four items");
    payload.view = std::move(view);
  }

  bool is_null(json::value& value) const {
    bool null = false;
    require(value.is_null().get(null), "a value");
    return null;
  }

  std::string text_in(const Payload& payload, json::value value) const {
    std::string_view text;
    if (value.get_string().get(text) != simdjson::SUCCESS) fail(payload, "expected a string");
    return std::string(text);
  }

  bool flag_in(const Payload& payload, json::value value) const {
    bool flag = false;
    if (value.get_bool().get(flag) != simdjson::SUCCESS) fail(payload, "expected true or false");
    return flag;
  }

  std::int64_t integer_in(const Payload& payload, json::value value) const {
    std::int64_t number = 0;
    if (value.get_int64().get(number) != simdjson::SUCCESS) fail(payload, "expected a 64-bit integer");
    return number;
  }

  // {"as_int": 4}. Other forms are sizes that only a run of the program knows.
  std::int64_t symbolic_in(const Payload& payload, json::value value) const {
    std::int64_t number = 0;
    std::size_t n = 0;
    for_each_field(object_in(value, "a size"), "a size", [&](std::string_view key, json::value field) {
      if (key != "as_int") unsupported(payload, "has a size or stride of kind " + quote(key));
      number = integer_in(payload, field);
      ++n;
    });
    if (n != 1) fail(payload, "a size without one number");
    return number;
  }

  std::vector<std::int64_t> numbers_in(const Payload& payload, json::value value, bool symbolic) const {
    json::array items;
    require(value.get_array().get(items), "a shape");
    std::vector<std::int64_t> numbers;
    for (auto each : items) {
      json::value item;
      require(std::move(each).get(item), "a shape");  // NOLINT(performance-move-const-arg): get() wants it
      if (numbers.size() == kMaxDimensions) fail(payload, "more than 64 dimensions");
      numbers.push_back(symbolic ? symbolic_in(payload, item) : integer_in(payload, item));
    }
    return numbers;
  }

  std::string_view dtype_in(const Payload& payload, json::value value) const {
    const std::int64_t number = integer_in(payload, value);
    for (const NumberedDtype& dtype : kDtypes) {
      if (dtype.number == number) return dtype.name;
    }
    unsupported(payload, "has dtype number " + std::to_string(number) + ", which zerocopy does not know");
  }

  std::string device_in(const Payload& payload, json::value value) const {
    std::string type;
    std::string index;
    for_each_field(object_in(value, "a device"), "a device", [&](std::string_view key, json::value field) {
      if (key == "type") type = text_in(payload, field);
      if (key == "index" && !is_null(field)) index = ":" + std::to_string(integer_in(payload, field));
    });
    if (type.empty() || type.size() > 64) fail(payload, "its device has type " + quote(type));
    return type + index;
  }

  std::string what_;
  simdjson::padded_string text_;
  json::parser parser_;
  json::document document_;
};

}  // namespace

std::vector<Payload> read_payloads(std::string_view text, const std::string& what) {
  return Parser(text, what).exported();
}

std::vector<Payload> read_compiled_payloads(std::string_view text, const std::string& what) {
  return Parser(text, what).compiled();
}

}  // namespace zerocopy

#include "python/contents.h"

#include <pybind11/complex.h>
#include <pybind11/stl.h>

#include <complex>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/archive.h"
#include "checkpoint/dict_entries.h"
#include "checkpoint/name_index.h"
#include "python/file_name.h"
#include "python/gil.h"
#include "python/listing.h"
#include "python/names.h"
#include "python/object_source.h"
#include "python/record.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

constexpr std::size_t kMaxText = 1000;  // longer values are not passed to Python
constexpr std::size_t kMaxItems = 64;

const RecordType& tensor_facts() {
  static const RecordType type("zerocopy._core.TensorFacts",
                               {"name", "dtype", "shape", "stride", "nbytes", "offset", "storage", "begin",
                                "requires_grad", "made_by", "inside", "is_conjugate", "is_negative"});
  return type;
}

const RecordType& storage_facts() {
  static const RecordType type(
      "zerocopy._core.StorageFacts",
      {"key", "dtype", "location", "offset", "stored_size", "is_deflated", "size", "nbytes"});
  return type;
}

std::string path_of(const Global& global) {
  return std::string(global.module) + "." + std::string(global.name);
}

std::optional<std::vector<std::int64_t>> integers_of(const Value& value) {
  if (!value.is(Kind::tuple) && !value.is(Kind::size) && !value.is(Kind::list)) return std::nullopt;
  std::vector<std::int64_t> numbers;
  for (const Value& item : value.as<Sequence>().items) {
    if (!item.is(Kind::integer) || numbers.size() == kMaxItems) return std::nullopt;
    numbers.push_back(item.integer());
  }
  return numbers;
}

const Value* item_of(const Value* value, std::size_t i) {
  if (value == nullptr || !(value->is(Kind::tuple) || value->is(Kind::list))) return nullptr;
  const auto& items = value->as<Sequence>().items;
  return i < items.size() ? items.begin() + i : nullptr;
}

// The tensor described by the arguments of a rebuild function. The arguments are unchecked.
struct Scattered {
  std::optional<std::vector<std::int64_t>> shape;
  const DType* dtype = nullptr;
  std::uint64_t nbytes = 0;  // of everything that is stored, including indices and scales
};

// Returns zero where a size is negative, or the product too large for any file.
std::uint64_t numel_of(const std::vector<std::int64_t>& shape) {
  std::uint64_t numel = 1;
  for (const std::int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(numel, static_cast<std::uint64_t>(size), &numel)) return 0;
  }
  return numel >> 56U == 0 ? numel : 0;
}

void add_part(Scattered& found, const Tensor& part) {
  std::uint64_t numel = 1;
  for (const Value& size : part.size->items) numel *= static_cast<std::uint64_t>(size.integer());
  found.nbytes += numel * static_cast<std::uint64_t>(part.dtype->size);
}

// _rebuild_tensor*, _rebuild_qtensor: storage, offset, size, stride, ...; v3 names the dtype.
// _rebuild_wrapper_subclass (DTensor): class, dtype, size, stride, ...
Scattered over_storage(std::span<const Value> arguments) {
  Scattered found;
  for (const Value& argument : arguments) {
    if (argument.is(Kind::storage)) {
      if (found.dtype == nullptr) found.dtype = argument.as<Storage>().element;
      found.nbytes += argument.as<Storage>().nbytes;
    } else if (argument.is(Kind::global) && argument.as<Global>().dtype != nullptr) {
      found.dtype = argument.as<Global>().dtype;
    } else if (const auto shape = integers_of(argument); shape && !found.shape) {
      found.shape = shape;
    }
    for (std::size_t i = 0; i < kMaxItems; ++i) {  // scales and zero points
      const Value* part = item_of(&argument, i);
      if (part == nullptr) break;
      if (const Tensor* tensor = NameIndex::dense(*part)) add_part(found, *tensor);
    }
  }
  return found;
}

// _rebuild_sparse_tensor: layout, (indices, values, size); _rebuild_nested_tensor: buffer, sizes, ...
Scattered of_parts(std::span<const Value> arguments) {
  Scattered found;
  for (const Value& argument : arguments) {
    if (const Tensor* tensor = NameIndex::dense(argument)) {
      add_part(found, *tensor);
      if (found.dtype == nullptr) found.dtype = tensor->dtype;
    }
    for (std::size_t i = 0; i < kMaxItems; ++i) {
      const Value* part = item_of(&argument, i);
      if (part == nullptr) break;
      if (const Tensor* tensor = NameIndex::dense(*part)) {
        add_part(found, *tensor);
        found.dtype = tensor->dtype;
      } else if (const auto shape = integers_of(*part)) {
        found.shape = shape;
      }
    }
  }
  return found;
}

Scattered made_by(std::string_view function, std::span<const Value> arguments) {
  // The arguments of _rebuild_from_type_v2 are a function, a class, the function's arguments and a
  // state. It rebuilds a tensor of a subclass, or one with attributes.
  if (function == "_rebuild_from_type_v2" && arguments.size() > 2 && arguments[0].is(Kind::global) &&
      arguments[2].is(Kind::tuple)) {
    function = arguments[0].as<Global>().name;
    const auto& inner = arguments[2].as<Sequence>().items;
    arguments = {inner.begin(), inner.size()};
  }
  if (function.starts_with("_rebuild_tensor") || function == "_rebuild_wrapper_subclass") {
    Scattered found = over_storage(arguments);
    if (found.shape && found.dtype != nullptr) found.nbytes = numel_of(*found.shape) * found.dtype->size;
    return found;
  }
  if (function == "_rebuild_qtensor" || function.starts_with("_rebuild_meta_tensor")) {
    return over_storage(arguments);
  }
  return of_parts(arguments);
}

Scattered scattered_of(const Object& object) {
  if (object.arguments == nullptr) return {};
  const auto& arguments = object.arguments->items;
  return made_by(object.callable->name, {arguments.begin(), arguments.size()});
}

py::object tensor_of(const Leaf& leaf, const std::vector<Record>& records) {
  const py::object name = text_of(leaf.name);
  const py::object inside = leaf.inside == nullptr ? py::object(py::none()) : text_of(path_of(*leaf.inside));
  const Value& value = leaf.value;
  const Tensor* tensor = NameIndex::dense(value);
  if (tensor == nullptr) {
    const Value& made = value.is(Kind::parameter) ? value.as<Parameter>().data : value;
    const bool known = made.is(Kind::object);
    const Scattered found = known ? scattered_of(made.as<Object>()) : Scattered{};
    const py::object shape =
        found.shape ? py::object(py::tuple(py::cast(*found.shape))) : py::object(py::none());
    const std::string_view dtype = found.dtype == nullptr ? "" : found.dtype->name;
    return tensor_facts().make(name, py::str(dtype.data(), dtype.size()), shape, py::none(), found.nbytes,
                               py::none(), py::none(), py::none(), false,
                               known ? text_of(path_of(*made.as<Object>().callable)) : py::str("unknown"),
                               inside, false, false);
  }
  const Storage& storage = *tensor->storage;
  const Storage& root = storage.whole();
  const Record& record = records[root.index];
  const auto& sizes = tensor->size->items;
  const auto& strides = tensor->stride->items;
  py::tuple shape(sizes.size());
  py::tuple stride(strides.size());
  std::int64_t numel = 1;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::int64_t size = sizes.begin()[i].integer();
    numel *= size;
    shape[i] = py::int_(size);
  }
  for (std::size_t i = 0; i < strides.size(); ++i) stride[i] = py::int_(strides.begin()[i].integer());
  const std::int64_t first = numel == 0 ? 0 : tensor->offset;  // without elements it may begin anywhere
  const std::uint64_t begin =
      storage.begin + static_cast<std::uint64_t>(first) * static_cast<std::uint64_t>(tensor->dtype->size);
  py::object offset = py::none();
  if (record.encoding == Encoding::stored && record.extent.offset != Record::kUnknown)
    offset = py::int_(record.extent.offset + begin);
  const bool requires_grad =
      value.is(Kind::parameter) ? value.as<Parameter>().requires_grad : tensor->requires_grad;
  return tensor_facts().make(name, tensor->dtype->name, shape, stride, numel * tensor->dtype->size, offset,
                             root.index, begin, requires_grad, py::str(), inside, tensor->conjugate,
                             tensor->negative);
}

py::object number_of(const Blob& blob) {
  if (blob.bytes.size() > kMaxText) return py::none();
  const std::string_view bytes = blob.bytes.text();
  const py::object type = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(&PyLong_Type));
  return type.attr("from_bytes")(py::bytes(bytes.data(), bytes.size()), "little", py::arg("signed") = true);
}

// Describes a value that is not a tensor: its kind, and a small value or the number of items.
std::pair<const char*, py::object> described(const Value& value) {
  switch (value.kind()) {
    case Kind::none:
      return {"None", py::none()};
    case Kind::boolean:
      return {"bool", py::bool_(value.boolean())};
    case Kind::integer:
      return {"int", py::int_(value.integer())};
    case Kind::big_integer:
      return {"int", number_of(value.as<Blob>())};
    case Kind::real:
      return {"float", py::float_(value.as<Real>().number)};
    case Kind::complex:
      return {
          "complex",
          py::str(py::cast(std::complex<double>(value.as<Complex>().real, value.as<Complex>().imaginary)))};
    case Kind::text:
    case Kind::byte_string:
      return {"str", text_of(value.as<Blob>().bytes.text().substr(0, kMaxText))};
    case Kind::bytes:
      return {"bytes", py::int_(value.as<Blob>().bytes.size())};
    case Kind::byte_array:
      return {"bytearray", py::int_(value.as<Blob>().bytes.size())};
    case Kind::tuple:
      return {"tuple", py::int_(value.as<Sequence>().items.size())};
    case Kind::list:
      return {"list", py::int_(value.as<Sequence>().items.size())};
    case Kind::set:
      return {"set", py::int_(value.as<Sequence>().items.size())};
    case Kind::frozenset:
      return {"frozenset", py::int_(value.as<Sequence>().items.size())};
    case Kind::size: {
      const auto numbers = integers_of(value);
      return {"torch.Size", numbers ? py::object(py::tuple(py::cast(*numbers))) : py::object(py::none())};
    }
    case Kind::dict:
    case Kind::ordered_dict:
      return {"dict", py::int_(value.as<Mapping>().items.size())};
    case Kind::counter:
      return {"Counter", py::int_(value.as<Mapping>().items.size())};
    case Kind::device:
      return {"torch.device", text_of(value.as<Device>().type)};
    case Kind::global:
      return {"global", text_of(path_of(value.as<Global>()))};
    case Kind::storage:
      return {"storage", text_of(value.as<Storage>().key)};
    case Kind::object:
      return {"object", text_of(path_of(*value.as<Object>().callable))};
    case Kind::tensor:
    case Kind::parameter:
      break;
  }
  return {"tensor", py::none()};
}

py::object metadata_of(const Document& document) {
  if (!document.metadata.is_mapping()) return py::none();
  py::dict made;
  for (const auto& [key, item] : DictEntries(document.metadata.as<Mapping>())) {
    if (key.is_text() && item.is_text())
      made[text_of(key.as<Blob>().bytes.text())] = text_of(item.as<Blob>().bytes.text());
  }
  return made;
}

// Returns the names of the root's attributes. Of plain values, only an OrderedDict can have
// attributes.
py::list attributes_of(const Document& document) {
  py::list names;
  const Value& root = document.root;
  if (!root.is(Kind::ordered_dict) || !root.as<Mapping>().state.is_mapping()) return names;
  for (const auto& [key, item] : DictEntries(root.as<Mapping>().state.as<Mapping>())) {
    names.append(key.is_text() ? text_of(key.as<Blob>().bytes.text()) : py::object(py::none()));
  }
  return names;
}

py::list storages_of(const Document& document, const std::vector<Record>& records) {
  py::list listed;
  for (const Storage* storage : document.storages) {
    const Record& record = records[storage->index];
    listed.append(storage_facts().make(text_of(storage->key), storage->element->name,
                                       text_of(storage->location), record.extent.offset, record.extent.size,
                                       record.encoding == Encoding::deflated, record.size, storage->nbytes));
  }
  return listed;
}

// Reads a checkpoint as a safe load does, without asking the allow-lists, and lists its content.
py::dict contents(const py::object& file, const FileName& name, const py::object& listing) {
  std::optional<Hdf5Listing> listed = listing_of(listing);
  std::unique_ptr<Archive> archive;
  std::optional<ParsedCheckpoint> parsed;
  std::shared_ptr<const Source> source = source_of(file, name);
  {
    const GilReleased released;
    archive = open_listed(std::move(source), nullptr, Mode::copy_on_write, std::move(listed));
    parsed.emplace(list_checkpoint(*archive, /*stubs=*/true));
  }
  return facts_of(*archive, *parsed, /*with_others=*/true);
}

}  // namespace

py::dict facts_of(const Archive& archive, const ParsedCheckpoint& parsed, bool with_others) {
  const Document& document = parsed.document;
  std::optional<NameIndex> name_index;
  {
    const GilReleased released;
    name_index.emplace(document);
  }
  py::list tensors;
  py::list others;
  for (const Leaf& leaf : name_index->leaves()) {
    if (NameIndex::is_tensor(leaf.value)) {
      tensors.append(tensor_of(leaf, parsed.records));
    } else if (with_others) {
      const auto [kind, value] = described(leaf.value);
      others.append(py::make_tuple(text_of(leaf.name), kind, value));
    }
  }
  return py::dict(py::arg("container") = archive.container(),
                  py::arg("end") = archive.content().source()->size() - archive.behind(),
                  py::arg("tensors") = tensors, py::arg("others") = others,
                  py::arg("storages") = storages_of(document, parsed.records),
                  py::arg("metadata") = metadata_of(document), py::arg("left_out") = names_left_out(archive),
                  // Whether the file can be used without torch: no allow-list has to decide on a global,
                  // and the bytes are in this machine's order.
                  py::arg("plain") = document.externals.empty() && !archive.is_torchscript() &&
                                     !archive.content().big_endian(),
                  py::arg("attributes") = attributes_of(document));
}

void register_contents(py::module_& module) {
  module.attr("TensorFacts") = tensor_facts().type();
  module.attr("StorageFacts") = storage_facts().type();
  module.def("contents", &contents, py::arg("file"), py::arg("name"), py::arg("listing") = py::none());
}

}  // namespace zerocopy

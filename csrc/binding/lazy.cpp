#include "binding/lazy.h"

#include <algorithm>
#include <utility>

#include "binding/document_pruner.h"
#include "binding/records.h"
#include "io/mapping.h"
#include "pickle/geometry.h"
#include "python/names.h"
#include "python/python.h"

namespace py = pybind11;

namespace zerocopy {
namespace {

// Remembers storages while tensors use them, so tensors share storages and nothing is read twice.
struct CachedStorage {
  WeakTorchStorage storage;
  bool replacement = false;
};

// Makes placeholders: objects of a Python class that store their source and the tensor's number.
class Placeholders final : public Tensors {
 public:
  Placeholders(const py::object& objects, Tensors& real)
      : Tensors(objects),
        real_(real),
        type_(objects.attr("placeholder_class")),
        source_(objects.attr("source")),
        as_is_(!objects.attr("converts").cast<bool>()) {}

  // Returns a real storage, since storages have no placeholders. A mapped storage reads nothing.
  py::object storage(const Storage& storage) override { return real_.storage(storage); }

  py::object tensor(const Tensor& tensor) override {
    const Shape shape(tensor);
    if (!as_is_ || tensor.storage->location != "cpu") {
      return construction().attr("placeholder")(tensor.index, tensor.offset, tuple_of(shape.size()),
                                                tuple_of(shape.stride()), dtypes().object(*tensor.dtype),
                                                text_of(tensor.storage->location), tensor.requires_grad);
    }
    py::object made = steal(placeholder({.dtype = dtypes().number(*tensor.dtype),
                                         .offset = tensor.offset,
                                         .size = shape.size(),
                                         .stride = shape.stride(),
                                         .requires_grad = tensor.requires_grad,
                                         .conjugate = false,
                                         .negative = false},
                                        reinterpret_cast<PyTypeObject*>(type_.ptr())));
    // Bypasses the class's own __setattr__, which sets attributes of the real tensor.
    const py::tuple recipe = py::make_tuple(source_, tensor.index);
    require(PyObject_GenericSetAttr(made.ptr(), recipe_name_.ptr(), recipe.ptr()));
    return made;
  }

 private:
  Tensors& real_;
  py::object type_;
  py::object source_;
  bool as_is_;
  py::str recipe_name_{"_recipe"};
};

// Returns the bytes of a view as ranges in ascending order, which include small gaps. Returns
// nothing for very many ranges, or if they are not in ascending order.
std::vector<Extent> joined_runs(const StridedView& view, std::int64_t item_size) {
  constexpr std::uint64_t kMaxGap = std::uint64_t{64} << 10U;
  std::vector<Extent> runs;
  bool ascending = true;
  for_each_run(view.size, view.stride, item_size, [&](Extent run) {
    const std::uint64_t end = runs.empty() ? 0 : runs.back().offset + runs.back().size;
    ascending = ascending && run.offset >= end;
    if (!ascending) return;
    if (!runs.empty() && run.offset - end <= kMaxGap) {
      runs.back().size = run.offset + run.size - runs.back().offset;
    } else {
      runs.push_back(run);
    }
  });
  return ascending ? runs : std::vector<Extent>();
}

}  // namespace

// The open file and its real storages.
class Lazy::Opened final : public StoredTensors {
 public:
  Opened(py::object archive, const FoundCheckpoint& parsed, Destination destination, py::object construction)
      : StoredTensors(archive.cast<Archive&>().content(), std::move(destination), std::move(construction)),
        archive_(std::move(archive)),
        records_(parsed.records),
        storages_(parsed.document.storages.size()),
        views_(parsed.document.views.size()) {}

  const Archive& archive() const { return archive_.cast<const Archive&>(); }

  py::object storage(const Storage& storage) override { return typed(stored(storage), storage); }
  py::object tensor(const Tensor& tensor) override { return over(stored(*tensor.storage), tensor); }

  py::object part(const Tensor& whole, StridedView view);

 private:
  Record record_of(const Storage& storage) const override { return records_.at(storage.index); }

  LoadedStorage stored(const Storage& storage) {
    CachedStorage& known = (storage.root == nullptr ? storages_ : views_)[storage.index];
    if (std::optional<LoadedStorage> there = cached_storage(known)) return *std::move(there);
    LoadedStorage made = storage.root == nullptr ? open(storage) : part_of(stored(*storage.root), storage);
    // The call into Python may have let another thread make this storage first.
    if (std::optional<LoadedStorage> there = cached_storage(known)) return *std::move(there);
    known.replacement = static_cast<bool>(made.replacement);
    known.storage = known.replacement ? WeakTorchStorage(TorchStorage::of(made.replacement.ptr()))
                                      : WeakTorchStorage(made.native);
    return made;
  }

  static std::optional<LoadedStorage> cached_storage(const CachedStorage& known) {
    TorchStorage native = known.storage.lock();
    if (!native) return std::nullopt;
    py::object replacement = known.replacement ? steal(native.wrap()) : py::object();
    return LoadedStorage{std::move(native), std::move(replacement)};
  }

  py::object archive_;
  const StorageRecords& records_;
  std::vector<CachedStorage> storages_;
  std::vector<CachedStorage> views_;
};

// Makes a tensor over its own elements only: mapped from the first to the last, or read by a library.
py::object Lazy::Opened::part(const Tensor& whole, StridedView view) {
  const Storage& storage = *whole.storage;
  const Storage& root = storage.whole();
  const std::int64_t item_size = whole.dtype->size;
  const auto numel = static_cast<std::int64_t>(storage.nbytes) / item_size;
  const std::string reason = why_not_a_view(numel, item_size, view.offset, view.size, view.stride);
  if (!reason.empty()) throw FormatError("checkpoint: the part needs " + reason);
  const auto reach = static_cast<std::uint64_t>(span_of(view.size, view.stride) * item_size);
  if (reach == 0) view.offset = 0;  // one without elements may begin outside of its storage
  Tensor tensor = whole;
  tensor.offset = 0;
  tensor.requires_grad = false;
  if (storage.root == nullptr && whole.dtype->size == root.element->size) {
    const auto selected = content().selected(record_of(root), *root.element, view);
    if (selected) return over(placed(*selected, root), tensor, {view.size, contiguous_strides(view.size)});
  }
  const Extent extent{storage.begin + static_cast<std::uint64_t>(view.offset * item_size), reach};
  const std::vector<Extent> runs = joined_runs(view, item_size);
  const Region bytes = content().part(record_of(root), *root.element, extent, runs);
  for_each_run(view.size, view.stride, item_size,
               [&](Extent run) { advise(bytes.bytes().subspan(run), Advice::soon); });
  return over(placed(bytes, root), tensor, {view.size, view.stride});
}

Lazy::Lazy(py::object archive, FoundCheckpoint parsed, py::dict allowed, std::string encoding,
           Destination destination, py::object construction, FileName name)
    : parsed_(std::move(parsed)),
      allowed_(std::move(allowed)),
      encoding_(std::move(encoding)),
      name_(std::move(name)),
      opened_(std::make_shared<Opened>(std::move(archive), parsed_, std::move(destination),
                                       std::move(construction))) {}

Lazy::~Lazy() = default;

Lazy::Leaves::Leaves(const Document& document) : name_index(document) {
  for (std::size_t i = 0; i < name_index.leaves().size(); ++i) {
    (NameIndex::is_tensor(name_index.leaves()[i].value) ? tensors : others).push_back(i);
  }
}

const Lazy::Leaves& Lazy::leaves() const {
  if (!leaves_) leaves_.emplace(parsed_.document);
  return *leaves_;
}

std::shared_ptr<Lazy::Opened> Lazy::opened() const {
  if (!opened_) {
    const py::object type = py::module_::import("zerocopy.errors").attr("ClosedError");
    PyErr_SetObject(type.ptr(), py::str("{} is closed").format(name_).ptr());
    throw py::error_already_set();
  }
  return opened_;
}

// Releasing may run Python code, so the checkpoint is marked as closed first.
void Lazy::close() { std::exchange(opened_, nullptr).reset(); }

const char* Lazy::container() const { return opened()->archive().container(); }

std::uint64_t Lazy::nbytes() const {
  std::uint64_t size = opened()->archive().content().source()->size();
  for (const Record& record : parsed_.records.encoded()) size += record.size;
  return size;
}

py::list Lazy::left_out() const { return names_left_out(opened()->archive()); }

void Lazy::require_there() const { opened()->archive().content().require_in_place(); }

// --------------------------------------------------------------------------------------- names

py::list Lazy::names_of(const std::vector<std::size_t>& chosen) const {
  py::list names(chosen.size());
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    names[i] = text_of(leaves().name_index.leaves()[chosen[i]].name);
  }
  return names;
}

std::int64_t Lazy::find(const py::str& name) const {
  const auto leaf = position_of(leaves().name_index, name);
  if (!leaf) return -1;
  const auto found = std::ranges::lower_bound(leaves().tensors, *leaf);
  return found != leaves().tensors.end() && *found == *leaf ? found - leaves().tensors.begin() : -1;
}

std::size_t Lazy::leaf_at(py::handle name) const {
  const auto leaf = position_of(leaves().name_index, name);
  if (!leaf) throw_missing(name);
  return *leaf;
}

const Value& Lazy::tensor_value(std::size_t i) const {
  const std::vector<std::size_t>& tensors = leaves().tensors;
  if (i < tensors.size()) return leaves().name_index.leaves()[tensors[i]].value;
  throw py::index_error("index out of range: the checkpoint has " + std::to_string(tensors.size()) +
                        " tensors");
}

py::object Lazy::entry(std::size_t i) const {
  const std::shared_ptr<Opened> real = opened();  // its archive checks the record
  const Value& value = tensor_value(i);
  const Tensor* tensor = NameIndex::dense(value);
  if (tensor == nullptr) return scattered_entry(py::tuple(), py::str());
  const Storage& root = tensor->storage->whole();
  const Record record = parsed_.records.at(root.index);
  const Placement placement = real->archive().content().placement(record, *root.element);
  return tensor_entry(value, record, placement.how == Placement::How::mapped);
}

void Lazy::expect_records() const {
  if (opened()) parsed_.records.expect_all();
}

py::list Lazy::outlines() const {
  py::list outlines(leaves().tensors.size());
  for (std::size_t i = 0; i < outlines.size(); ++i) outlines[i] = tensor_outline(tensor_value(i));
  return outlines;
}

// ------------------------------------------------------------------------------------- objects

py::object Lazy::build(const py::object& objects, const py::object& chosen) {
  const std::shared_ptr<Opened> real = opened();
  Placeholders placeholders(objects, *real);
  const BuildPolicy policy{allowed_, encoding_, objects};
  Builder builder(parsed_.document, placeholders, policy);
  if (chosen.is_none()) return builder.value(parsed_.document.root);
  const std::vector<Leaf>& all = leaves().name_index.leaves();
  std::vector<bool> keep(all.size());
  for (const py::handle name : chosen) keep[leaf_at(name)] = true;
  return DocumentPruner(parsed_.document, builder, all, keep, objects).root(parsed_.document.root);
}

py::object Lazy::leaf(const py::str& name, const py::object& objects) {
  const Value& value = leaves().name_index.leaves()[leaf_at(name)].value;
  if (!value.is(Kind::tensor)) return leaves_named(py::list(py::make_tuple(name)), objects)[0];
  const std::shared_ptr<Opened> real = opened();
  return Placeholders(objects, *real).tensor(value.as<Tensor>());
}

py::list Lazy::leaves_named(const py::list& names, const py::object& objects) {
  const std::shared_ptr<Opened> real = opened();
  Placeholders placeholders(objects, *real);
  const BuildPolicy policy{allowed_, encoding_, objects};
  Builder builder(parsed_.document, placeholders, policy);
  py::list made;
  for (const py::handle name : names)
    made.append(builder.value(leaves().name_index.leaves()[leaf_at(name)].value));
  return made;
}

py::object Lazy::metadata(const py::object& objects) {
  Placeholders placeholders(objects, *opened());
  const BuildPolicy policy{allowed_, encoding_, objects};
  return Builder(parsed_.document, placeholders, policy).value(parsed_.document.metadata);
}

// ------------------------------------------------------------------------------------- tensors

py::object Lazy::part(std::size_t i, std::int64_t offset, const std::vector<std::int64_t>& size,
                      const std::vector<std::int64_t>& stride) {
  const Tensor* tensor = NameIndex::dense(tensor_value(i));
  if (tensor == nullptr) throw py::value_error("expected a dense tensor");
  const std::shared_ptr<Opened> real = opened();
  require_there();
  return real->part(*tensor, {offset, size, stride});
}

py::tuple Lazy::shown_at(std::size_t index) const {
  const Tensor& tensor = *parsed_.document.tensors.at(index);
  const Storage& storage = *tensor.storage;
  const Shape shape(tensor);
  return py::make_tuple(tensor.dtype->name,
                        py::make_tuple(storage.whole().index, storage.begin, storage.nbytes),
                        py::make_tuple(tensor.offset, tuple_of(shape.size()), tuple_of(shape.stride()),
                                       tensor.conjugate, tensor.negative));
}

py::object Lazy::tensor_at(std::size_t index) {
  const std::shared_ptr<Opened> real = opened();
  require_there();
  return real->tensor(*parsed_.document.tensors.at(index));
}

}  // namespace zerocopy

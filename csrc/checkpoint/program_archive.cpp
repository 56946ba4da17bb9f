#include "checkpoint/program_archive.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "checkpoint/tensor_document.h"
#include "io/file_part.h"

namespace zerocopy {
namespace {

constexpr std::string_view kWeights = "data/weights/";
constexpr std::string_view kConstants = "data/constants/";
constexpr std::string_view kCompiled = "data/aotinductor/";
constexpr std::string_view kTensor = "tensor_";  // begins the records of tensors among the constants

// Returns the part of `name` between a folder and an ending; nothing for other names.
std::optional<std::string> between(std::string_view folder, std::string_view name, std::string_view ending) {
  if (name.size() <= folder.size() + ending.size() || !name.starts_with(folder) || !name.ends_with(ending))
    return std::nullopt;
  return std::string(name.substr(folder.size(), name.size() - folder.size() - ending.size()));
}

const Tensor* dense(const Value& value) {
  const Value& data = value.is(Kind::parameter) ? value.as<Parameter>().data : value;
  return data.is(Kind::tensor) ? &data.as<Tensor>() : nullptr;
}

}  // namespace

// Makes the document: each payload becomes a tensor, or the value of a pickle.
class ProgramArchive::Reader {
 public:
  Reader(const ProgramArchive& archive, bool stubs)
      : archive_(archive), stubs_(stubs), document_(archive.text_, archive.content_.fixed_budget()) {}

  Document read() {
    auto& root = document_.make<Mapping>(Kind::dict);
    document_.root = Value::of(root);
    for (const auto& [name, model] : archive_.models_) {
      const bool only = archive_.models_.size() == 1;
      auto& tensors = only ? root : document_.make<Mapping>(Kind::dict);
      for (const Listed& listed : model) put(tensors, listed.payload.name, value_of(listed));
      if (!only) put(root, name, Value::of(tensors));
    }
    document_.check_repeated_work();
    return std::move(document_);
  }

 private:
  void put(Mapping& mapping, std::string_view name, const Value& value) {
    mapping.items.push_back(document_.arena(), {add_text(document_, name), value});
  }

  Value value_of(const Listed& listed) {
    const Payload& payload = listed.payload;
    const std::string what = "pt2: tensor " + quote(payload.name);
    if (!payload.is_pickled) return raw(listed, what);
    const Value value = unpickled(listed.record);
    if (!payload.view) return value;
    const Tensor* whole = dense(value);
    if (whole == nullptr) throw FormatError(what + " is a view of an object that is not a dense tensor");
    return Value::of(add_view(document_, *whole->storage, *whole->dtype, of(*payload.view), what));
  }

  static StridedView of(const PayloadView& view) { return {view.offset, view.size, view.stride}; }

  Value raw(const Listed& listed, const std::string& what) {
    const Payload& payload = listed.payload;
    const DType& dtype = *dtype_by_name(payload.dtype);
    if (payload.device == "meta")
      throw UnsupportedError(what + " is on the meta device: the file has no bytes of it");
    if (payload.requires_grad && !dtype.differentiable)
      throw FormatError(what + " requires grad, which " + std::string(dtype.name) + " cannot");
    const Storage& storage = storage_of(listed, dtype, what);
    Tensor& tensor = add_view(document_, storage, dtype, of(*payload.view), what);
    if (!payload.is_parameter) {
      tensor.requires_grad = payload.requires_grad;
      return Value::of(tensor);
    }
    auto& parameter = document_.make<Parameter>(Kind::parameter);
    parameter.data = Value::of(tensor);
    parameter.requires_grad = payload.requires_grad;
    return Value::of(parameter);
  }

  // Payloads with one record are views of one storage.
  const Storage& storage_of(const Listed& listed, const DType& dtype, const std::string& what) {
    const Storage*& storage = storages_[listed.record];
    if (storage == nullptr) {
      const auto record = archive_.directory().find(listed.record);
      if (!record) throw FormatError(what + ": record " + quote(listed.record) + " is missing");
      const std::uint64_t nbytes = archive_.directory().size(*record);
      if (nbytes % dtype.size != 0) throw FormatError(what + ": its record does not hold whole elements");
      storage = &add_storage(document_, listed.record, dtype, nbytes, listed.payload.device);
    }
    if (storage->dtype != &dtype || storage->location != listed.payload.device)
      throw FormatError(what + ": its record has another dtype or device in another tensor");
    return *storage;
  }

  Value unpickled(const std::string& record) {
    const auto [found, is_new] = values_.try_emplace(record);
    if (!is_new) return found->second;
    const Inner& inner = archive_.inner_.find(record)->second;
    const std::string folder = record + "/";
    found->second =
        read_pickle(document_, document_.text().subspan(inner.pickle), {.stubs = stubs_, .folder = folder});
    return found->second;
  }

  const ProgramArchive& archive_;
  bool stubs_;
  Document document_;
  std::map<std::string_view, const Storage*> storages_;
  std::map<std::string_view, Value> values_;
};

ProgramArchive::ProgramArchive(Content content, Zip zip)
    : ZipArchive(OfOther(), std::move(content), std::move(zip)) {
  require_version();
  content_.set_big_endian(read_byteorder());
  std::string text;
  for (std::size_t i = 0; i < directory().count(); ++i) text += read_list(directory().name(i));
  for (const auto& [name, model] : models_) {
    for (const Listed& listed : model) {
      if (listed.payload.is_pickled) text += open_inner(listed.record, text.size());
    }
  }
  text_ = Region::allocate(text.size());
  std::ranges::copy(ByteSpan(text).data(), ByteSpan(text).data() + text.size(), text_.data());
}

void ProgramArchive::require_version() const {
  for (const auto& [name, expected] :
       {std::pair("archive_format", "pt2"), std::pair("archive_version", "0")}) {
    const auto record = directory().find(name);
    const std::string found = record ? read_text(*record) : "";
    if (found != expected) {
      throw UnsupportedError("pt2: " + std::string(name) + " is " + quote(found) + ", expected " +
                             quote(expected));
    }
  }
}

// Returns the text of a list of weights or constants, and keeps what it lists. Other records have none.
std::string ProgramArchive::read_list(std::string_view name) {
  if (between(kWeights, name, ".pt") || between(kConstants, name, ".pt")) {
    throw UnsupportedError(
        "pt2: record " + quote(name) +
        " holds all tensors in one pickle, as PyTorch 2.8 writes it: torch.export.load reads it");
  }
  if (const auto model = between("models/", name, ".json")) models_[*model];
  const auto weights = between(kWeights, name, "_weights_config.json");
  const auto constants = between(kConstants, name, "_constants_config.json");
  const auto compiled = between(kCompiled, name, "/weights_config.json");
  if (!weights && !constants && !compiled) return {};
  const Region content = read(*directory().find(name));
  const std::string what = "pt2: " + std::string(name);
  const std::string_view text = content.bytes().text();
  if (compiled) {
    add(*compiled, kWeights, read_compiled_payloads(text, what));
  } else {
    add(weights ? *weights : *constants, weights ? kWeights : kConstants, read_payloads(text, what));
  }
  return std::string(text);
}

void ProgramArchive::add(const std::string& model, std::string_view folder, std::vector<Payload> payloads) {
  for (Payload& payload : payloads) {
    if (folder == kConstants && !payload.path.starts_with(kTensor)) continue;  // an object of the program
    std::string record = std::string(folder) + payload.path;
    models_[model].push_back({std::move(record), std::move(payload)});
  }
}

// Opens the file in a record, unless it is open, and returns its pickle, which will lie at the end of the
// text.
std::string ProgramArchive::open_inner(const std::string& name, std::uint64_t text_size) {
  if (inner_.contains(name)) return {};
  const auto number = directory().find(name);
  if (!number) throw FormatError("pt2: record " + quote(name) + " is missing");
  const Record record = directory().record(*number);
  if (record.encoding != Encoding::stored)
    throw UnsupportedError("pt2: record " + quote(name) + " is deflated");
  auto part = std::make_shared<const PartSource>(content_.source(), record.extent, TransferOptions());
  auto archive = std::make_unique<ZipArchive>(Content(std::move(part), nullptr, Mode::copy_on_write));
  if (archive->is_torchscript()) throw FormatError("pt2: record " + quote(name) + " is a program");
  if (archive->content().big_endian() != content_.big_endian())
    throw UnsupportedError("pt2: record " + quote(name) + " has another byte order than the archive");
  const auto pickled = archive->directory().find("data.pkl");
  if (pickled && archive->directory().is_deflated(*pickled))
    throw UnsupportedError("pt2: record " + quote(name) + " has a deflated pickle");
  std::string pickle(archive->pickle().bytes().text());
  inner_.emplace(name, Inner{record.extent.offset, std::move(archive), {text_size, pickle.size()}});
  return pickle;
}

Region ProgramArchive::pickle() const {
  throw UnsupportedError("checkpoint: a .pt2 has no pickle of its own");
}

Document ProgramArchive::document(bool stubs) const { return Reader(*this, stubs).read(); }

std::vector<Record> ProgramArchive::records(std::span<const StorageRequest> storages) {
  std::vector<Record> records;
  records.reserve(storages.size());
  for (StorageRequest storage : storages) {
    const auto inner = inner_.find(storage.key.substr(0, storage.key.rfind('/')));
    if (inner == inner_.end()) {
      records.push_back(records_in("", {&storage, 1}).front());
      continue;
    }
    storage.key.remove_prefix(inner->first.size() + 1);
    records.push_back(inner->second.archive->records({&storage, 1}).front());
    records.back().extent.offset += inner->second.begin;
  }
  return records;
}

StorageRecords ProgramArchive::found_records(std::span<const StorageRequest> storages) {
  return inner_.empty() ? found_in("", storages) : StorageRecords(records(storages));
}

}  // namespace zerocopy

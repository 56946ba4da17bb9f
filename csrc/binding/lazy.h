// A checkpoint that was parsed but not built: its leaves by name, placeholders for its tensors, and
// real tensors on request.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "binding/builder.h"
#include "binding/tensors.h"
#include "checkpoint/archive.h"
#include "checkpoint/name_index.h"
#include "python/file_name.h"

namespace zerocopy {

// A document, and the records of its storages, each checked when it is used.
struct FoundCheckpoint {
  Document document;
  StorageRecords records;
};

class Lazy {
 public:
  // `archive` is the Python object of the Archive. `construction` makes real tensors, as for
  // Builder. `name` is for errors.
  Lazy(pybind11::object archive, FoundCheckpoint parsed, pybind11::dict allowed, std::string encoding,
       Destination destination, pybind11::object construction, FileName name);
  Lazy(const Lazy&) = delete;
  Lazy& operator=(const Lazy&) = delete;
  ~Lazy();

  const char* container() const;
  const FileName& name() const noexcept { return name_; }
  std::uint64_t nbytes() const;  // of the file, and what its compressed records inflate to
  pybind11::list left_out() const;

  // names() lists the tensors, other_names() all other leaves. find() returns a position in
  // names(), or -1.
  pybind11::list names() const { return names_of(leaves().tensors); }
  pybind11::list other_names() const { return names_of(leaves().others); }
  std::int64_t find(const pybind11::str& name) const;

  // Returns the TensorEntry of one name. Call expect_records() before asking for most of them.
  pybind11::object entry(std::size_t i) const;
  void expect_records() const;
  // Returns the TensorOutline of each name. Reads nothing.
  pybind11::list outlines() const;

  // Builds the document, or the chosen leaves of it. `objects` replaces `construction` and makes
  // placeholders.
  pybind11::object build(const pybind11::object& objects, const pybind11::object& chosen);
  pybind11::object leaf(const pybind11::str& name, const pybind11::object& objects);
  // Builds several leaves. Leaves that share objects share them in Python too.
  pybind11::list leaves_named(const pybind11::list& names, const pybind11::object& objects);

  // Returns the container's metadata, a dict of strings, or None.
  pybind11::object metadata(const pybind11::object& objects);

  // Return real tensors. `i` is a position in names(). `index`, which a placeholder stores, is the
  // number of the tensor in the document.
  pybind11::object part(std::size_t i, std::int64_t offset, const std::vector<std::int64_t>& size,
                        const std::vector<std::int64_t>& stride);
  pybind11::object tensor_at(std::size_t index);
  // Returns the dtype; the identity of the storage, which is the number of its record and the range
  // in it; and the tensor's view of the storage. Tied tensors have equal views of one storage.
  pybind11::tuple shown_at(std::size_t index) const;

  // Throws if the file was moved or changed, or if the checkpoint is closed.
  void require_there() const;
  void close();
  bool closed() const noexcept { return !opened_; }

 private:
  class Opened;

  // The leaves, and the positions of tensors among them. Created when a name is first needed.
  struct Leaves {
    explicit Leaves(const Document& document);

    NameIndex name_index;
    std::vector<std::size_t> tensors;
    std::vector<std::size_t> others;
  };

  const Leaves& leaves() const;
  // Hold the result during use: calls into Python let other threads run, and these may close the
  // checkpoint.
  std::shared_ptr<Opened> opened() const;
  pybind11::list names_of(const std::vector<std::size_t>& chosen) const;
  std::size_t leaf_at(pybind11::handle name) const;
  const Value& tensor_value(std::size_t i) const;

  FoundCheckpoint parsed_;
  mutable std::optional<Leaves> leaves_;
  pybind11::dict allowed_;
  std::string encoding_;
  FileName name_;
  std::shared_ptr<Opened> opened_;
};

}  // namespace zerocopy

// A checkpoint that was read and not built: its leaves by name, placeholders for its tensors, and the tensors
// themselves when they are wanted.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "binding/builder.h"
#include "binding/tensors.h"
#include "checkpoint/archive.h"
#include "checkpoint/catalog.h"

namespace zerocopy {

// A document and the records of its storages, by their index.
struct Reading {
  Document document;
  std::vector<Record> records;
};

class Lazy {
 public:
  // `archive` is the Archive as Python has it; `construction` makes real tensors, as for the builder; `name`
  // is what errors call the file.
  Lazy(pybind11::object archive, Reading reading, pybind11::dict allowed, std::string encoding,
       Destination destination, pybind11::object construction, std::string name);
  Lazy(const Lazy&) = delete;
  Lazy& operator=(const Lazy&) = delete;
  ~Lazy();

  const char* container() const;
  const std::string& name() const noexcept { return name_; }

  // Of the leaves that are tensors, and of the others. find() gives a place among the former, or -1.
  pybind11::list names() const { return names_of(leaves().tensors); }
  pybind11::list other_names() const { return names_of(leaves().others); }
  std::int64_t find(const pybind11::str& name) const;

  // The TensorEntry of a name, and those of all names.
  pybind11::object entry(std::size_t i) const;
  pybind11::list entries() const;

  // What the document says, or the chosen leaves of it; `objects` stands in for construction, and makes
  // placeholders.
  pybind11::object build(const pybind11::object& objects, const pybind11::object& chosen);
  pybind11::object leaf(const pybind11::str& name, const pybind11::object& objects);
  // Several leaves, of which those that share a part share it in Python too.
  pybind11::list leaves_named(const pybind11::list& names, const pybind11::object& objects);

  // What the container says of the file as a whole, a dict of strings, or None.
  pybind11::object metadata(const pybind11::object& objects);

  // Real tensors. `i` counts names; `index` is what a placeholder knows of itself: its number among the
  // document's tensors.
  pybind11::object part(std::size_t i, std::int64_t offset, const std::vector<std::int64_t>& size,
                        const std::vector<std::int64_t>& stride);
  pybind11::object tensor_at(std::size_t index);
  // Its dtype, and what tensors have in common that share memory: the number of a record, which of its bytes.
  pybind11::tuple storage_at(std::size_t index) const;

  // Throws when the file is not there any more as it was opened, or this is closed.
  void require_there() const;
  void close();
  bool closed() const noexcept { return !opened_; }

 private:
  class Opened;

  // The leaves, and which of them are tensors: made when a name is asked for.
  struct Leaves {
    explicit Leaves(const Document& document);

    Catalog catalog;
    std::vector<std::size_t> tensors;
    std::vector<std::size_t> others;
  };

  const Leaves& leaves() const;
  // To be held as long as it is used: whatever asks Python lets other threads run, which may close this.
  std::shared_ptr<Opened> opened() const;
  pybind11::list names_of(const std::vector<std::size_t>& chosen) const;
  std::size_t leaf_at(pybind11::handle name) const;
  const Value& tensor_value(std::size_t i) const;

  Reading reading_;
  mutable std::optional<Leaves> leaves_;
  pybind11::dict allowed_;
  std::string encoding_;
  std::string name_;
  std::shared_ptr<Opened> opened_;
};

}  // namespace zerocopy

// The typed arguments of a native call.
#pragma once

#include <array>
#include <span>
#include <string>

#include "pickle/document.h"
#include "pickle/geometry.h"
#include "pickle/keys.h"

namespace zerocopy {

// The arguments of one call. Each getter checks the type.
class Arguments {
 public:
  Arguments(const Global& callable, const Sequence& arguments, std::uint64_t offset)
      : callable_(callable), items_(arguments.items), offset_(offset) {}

  std::size_t count() const noexcept { return items_.size(); }

  void require_count(std::size_t least, std::size_t most) const {
    if (count() < least || count() > most) fail(std::to_string(count()) + " arguments");
  }

  const Value& operator[](std::size_t i) const { return items_[i]; }

  std::int64_t integer(std::size_t i) const {
    if (!items_[i].is(Kind::integer)) fail("is not a 64-bit integer", i);
    return items_[i].integer();
  }

  bool boolean(std::size_t i) const {
    if (!items_[i].is(Kind::boolean)) fail("is not a bool", i);
    return items_[i].boolean();
  }

  double real(std::size_t i) const {
    if (!items_[i].is(Kind::real)) fail("is not a float", i);
    return items_[i].as<Real>().number;
  }

  std::string_view text(std::size_t i) const {
    if (!items_[i].is_text()) fail("is not a string", i);
    return items_[i].as<Blob>().bytes.text();
  }

  Storage& storage(std::size_t i) const {
    if (!items_[i].is(Kind::storage)) fail("is not a storage", i);
    return items_[i].as<Storage>();
  }

  const DType& dtype(std::size_t i) const {
    const Global* global = items_[i].is(Kind::global) ? &items_[i].as<Global>() : nullptr;
    if (global != nullptr && global->action == Action::external) {
      throw UnsupportedError("pickle: dtype " + quote(global->name) + where());
    }
    if (global == nullptr || global->action != Action::dtype) fail("is not a dtype", i);
    return *global->dtype;
  }

  // A tuple or torch.Size.
  const Sequence& sequence(std::size_t i) const {
    if (!items_[i].is(Kind::tuple) && !items_[i].is(Kind::size)) fail("is not a tuple", i);
    return items_[i].as<Sequence>();
  }

  void require_key(Document& document, const Value& key) const { check_key(document, key, offset_); }

  // torch.save writes an empty OrderedDict. backward() would call any item of it.
  void no_hooks(std::size_t i) const {
    if (items_[i].is(Kind::none)) return;
    if (!items_[i].is_mapping()) refuse("backward hooks are not a dict");
    const auto& hooks = items_[i].as<Mapping>();
    if (!hooks.items.empty() || !hooks.state.is(Kind::none)) refuse("backward hooks");
  }

  [[noreturn]] void fail(const std::string& reason) const {
    throw FormatError("pickle: " + name() + ": " + reason + where());
  }
  [[noreturn]] void fail(const char* reason, std::size_t i) const {
    fail("argument " + std::to_string(i) + " " + reason);
  }
  [[noreturn]] void refuse(const std::string& reason) const {
    throw RefusedError("pickle: " + name() + ": " + reason + where());
  }
  [[noreturn]] void unsupported(const std::string& reason) const {
    throw UnsupportedError("pickle: " + name() + ": " + reason + where());
  }

 private:
  std::string name() const { return std::string(callable_.module) + "." + std::string(callable_.name); }
  std::string where() const { return " (at " + hex(offset_) + ")"; }

  const Global& callable_;
  const ArenaList<Value>& items_;
  std::uint64_t offset_;
};

// Sizes or strides, read from their tuple.
class Integers {
 public:
  // NOLINTNEXTLINE(*-member-init): 512 bytes a tensor, of which 16 are used
  Integers(const Arguments& arguments, std::size_t i)
      : sequence_(arguments.sequence(i)), count_(sequence_.items.size()) {
    if (count_ > kMaxDimensions) arguments.fail(std::to_string(count_) + " dimensions");
    for (std::size_t k = 0; k < count_; ++k) {
      if (!sequence_.items[k].is(Kind::integer)) arguments.fail("holds other items than 64-bit integers", i);
      values_[k] = sequence_.items[k].integer();
    }
  }

  const Sequence* sequence() const noexcept { return &sequence_; }
  std::span<const std::int64_t> values() const noexcept { return {values_.data(), count_}; }

 private:
  const Sequence& sequence_;
  std::size_t count_;
  std::array<std::int64_t, kMaxDimensions> values_;
};

}  // namespace zerocopy

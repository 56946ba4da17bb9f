#include "pickle/keys.h"

namespace zerocopy {
namespace {

constexpr int kMaxDepth = 8;
constexpr int kMaxLeaves = 1024;
constexpr std::size_t kMaxInteger = 64;

class KeyCheck {
 public:
  explicit KeyCheck(std::uint64_t offset) : offset_(offset) {}

  void visit(const Value& key, int depth) {
    switch (key.kind()) {
      case Kind::none:
      case Kind::boolean:
      case Kind::integer:
      case Kind::real:
      case Kind::text:
      case Kind::byte_string:
      case Kind::bytes:
        return count(depth);
      case Kind::big_integer:  // Python hashes all of its bytes on each use
        if (key.as<Blob>().bytes.size() > kMaxInteger) fail("a key of too large an integer");
        return count(depth);
      case Kind::complex:
      case Kind::device:
      case Kind::tensor:  // hashed by identity
      case Kind::parameter:
      case Kind::storage:
      case Kind::global:  // so are classes and functions
        return count(depth);
      case Kind::tuple:
      case Kind::size:
      case Kind::frozenset:
        if (key.as<Sequence>().items.empty()) return count(depth);
        for (const Value& item : key.as<Sequence>().items) visit(item, depth + 1);
        return;
      case Kind::object:  // hashed by its class; the bound covers its arguments
        count(depth);
        return weigh(key.as<Object>(), depth);
      case Kind::list:
      case Kind::dict:
      case Kind::ordered_dict:
      case Kind::counter:
      case Kind::set:
      case Kind::byte_array:
        fail("a key that cannot be hashed");
    }
  }

  // The number of parts beyond the first.
  std::uint64_t parts() const noexcept { return static_cast<std::uint64_t>(seen_ - 1); }

 private:
  void weigh(const Object& object, int depth) {
    for (const Value& item : object.arguments->items) weigh(item, depth + 1);
    for (const Object::Step& step : object.steps) weigh(step.value, depth + 1);
  }

  void weigh(const Value& part, int depth) {
    count(depth);
    if (part.is(Kind::object)) weigh(part.as<Object>(), depth);
    if (part.is(Kind::tuple) || part.is(Kind::list)) {
      for (const Value& item : part.as<Sequence>().items) weigh(item, depth + 1);
    }
    if (part.is_mapping()) {
      for (const auto& [name, value] : part.as<Mapping>().items) weigh(value, depth + 1);
    }
  }

  void count(int depth) {
    if (++seen_ > kMaxLeaves || depth > kMaxDepth) fail("a key of too many or too deep tuples");
  }

  std::string where() const { return " (at " + hex(offset_) + ")"; }
  [[noreturn]] void fail(const char* reason) const { throw FormatError("pickle: " + (reason + where())); }

  std::uint64_t offset_;
  int seen_ = 0;
};

}  // namespace

void check_key(Document& document, const Value& key, std::uint64_t offset) {
  KeyCheck check(offset);
  check.visit(key, 0);
  document.charge_key(check.parts());
}

}  // namespace zerocopy

#include "document_check.h"

#include <algorithm>
#include <set>

#include "fuzz.h"
#include "text/name_hash.h"

namespace zerocopy::fuzz {
namespace {

class Walk {
 public:
  explicit Walk(const Document& document)
      : document_(document),
        seen_(document.slots()),
        externals_(document.externals.begin(), document.externals.end()) {}

  void run() {
    visit(document_.root);
    while (!waiting_.empty()) {  // no recursion: hostile graphs are deep
      const Node& node = *waiting_.back();
      waiting_.pop_back();
      look_at(node);
    }
  }

 private:
  void visit(const Value& value) {
    if (!value.is_node()) return;
    const Node& node = value.node();
    check(node.slot < seen_.size(), "a node's slot is below the number of slots");
    if (seen_[node.slot]) return;
    seen_[node.slot] = true;
    waiting_.push_back(&node);
  }

  void visit(const Sequence& sequence) {
    for (const Value& item : sequence.items) visit(item);
  }

  void look_at(const Node& node) {
    switch (node.kind) {
      case Kind::tuple:
      case Kind::list:
      case Kind::set:
      case Kind::frozenset:
      case Kind::size:
        return visit(static_cast<const Sequence&>(node));
      case Kind::dict:
      case Kind::ordered_dict:
      case Kind::counter: {
        const auto& mapping = static_cast<const Mapping&>(node);
        for (const auto& [key, value] : mapping.items) {
          visit(key);
          visit(value);
        }
        return visit(mapping.state);
      }
      case Kind::parameter:
        visit(static_cast<const Parameter&>(node).data);
        return visit(static_cast<const Parameter&>(node).state);
      case Kind::object:
        return look_at(static_cast<const Object&>(node));
      case Kind::global:
        return look_at(static_cast<const Global&>(node));
      case Kind::storage:
        return look_at(static_cast<const Storage&>(node));
      case Kind::tensor:
        return look_at(static_cast<const Tensor&>(node));
      default:
        return;
    }
  }

  void look_at(const Object& object) {
    look_at(*object.callable);
    check(object.callable->action == Action::external, "only what is not native is left to be called");
    visit(*object.arguments);
    for (const Object::Step& step : object.steps) {
      visit(step.key);
      visit(step.value);
    }
  }

  void look_at(const Global& global) {
    if (global.action == Action::external) check(externals_.contains(&global), "every external is listed");
  }

  void look_at(const Storage& storage) {
    const auto& kin = storage.root == nullptr ? document_.storages : document_.views;
    check(storage.index < kin.size() && kin[storage.index] == &storage, "every storage is listed");
    check(storage.nbytes == static_cast<std::uint64_t>(storage.numel) * storage.dtype->size,
          "a storage's bytes are those of its elements");
    if (storage.root == nullptr) return;
    look_at(*storage.root);
    check(storage.root->root == nullptr, "the root of a view is no view");
    check(Extent{storage.begin, storage.nbytes}.fits(storage.root->nbytes), "a view lies inside its root");
  }

  void look_at(const Tensor& tensor) {
    look_at(*tensor.storage);
    const auto& size = tensor.size->items;
    const auto& stride = tensor.stride->items;
    check(size.size() == stride.size(), "as many strides as sizes");
    check(tensor.offset >= 0, "the offset is not negative");
    // At most 64 dimensions of 2^126: saturates before sums can wrap.
    constexpr Wide kHuge = static_cast<Wide>(1) << 120U;
    auto end = static_cast<Wide>(tensor.offset) + 1;
    bool empty = false;
    for (std::size_t i = 0; i < size.size(); ++i) {
      check(size[i].is(Kind::integer) && stride[i].is(Kind::integer), "sizes and strides are integers");
      check(size[i].integer() >= 0 && stride[i].integer() >= 0, "no size or stride is negative");
      empty = empty || size[i].integer() == 0;
      if (size[i].integer() == 0) continue;
      end += static_cast<Wide>(size[i].integer() - 1) * static_cast<Wide>(stride[i].integer());
      end = std::min(end, kHuge);
    }
    if (empty) return;  // it may begin anywhere
    check(end * tensor.dtype->size <= tensor.storage->nbytes, "a tensor lies inside its storage");
  }

  const Document& document_;
  std::vector<bool> seen_;
  std::set<const Global*> externals_;
  std::vector<const Node*> waiting_;
};

}  // namespace

void check_document(const Document& document) { Walk(document).run(); }

}  // namespace zerocopy::fuzz

// The names of a document's leaves: each is found, all differ, and their size is in proportion.
#include "checkpoint/name_index.h"
#include "fuzz.h"
#include "pickle/machine.h"

namespace zerocopy::fuzz {
namespace {

// Names may take Budget::kFixed and 64 times the pickle. The tables of leaves take three times
// their charge.
constexpr std::uint64_t kBudget = 64;

void run(const Region& pickle) {
  const TimeLimit time(kMiB / 4 + kBudget / 16 * std::uint64_t{pickle.size()});
  const MemoryLimit memory(5 * kMiB + 4 * Budget::kFixed +
                           (128 + 4 * kBudget) * std::uint64_t{pickle.size()});
  succeeds([&] {
    const Document document = read_pickle(pickle);
    const NameIndex name_index(document);
    for (std::size_t i = 0; i < name_index.leaves().size(); ++i) {
      const auto& [name, value, inside, within] = name_index.leaves()[i];
      check(name_index.find(name) == i, "a leaf is found by its name");
      check(!BranchPath::is_branch(value), "a leaf is no branch");
      check(within < name_index.leaves().size() - i, "tensors inside an object are leaves after it");
      check(inside == nullptr || NameIndex::is_tensor(value), "only tensors are inside objects");
      const Tensor* tensor = NameIndex::dense(value);
      check(tensor == nullptr || document.tensors[tensor->index] == tensor, "a tensor knows its number");
    }
  });
}

}  // namespace
}  // namespace zerocopy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  zerocopy::fuzz::run(zerocopy::fuzz::region_of(data, size));
  return 0;
}

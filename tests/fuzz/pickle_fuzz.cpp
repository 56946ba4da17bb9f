// The pickle machine with both forms of persistent ids, and the two walks that execute nothing.
#include <algorithm>

#include "document_check.h"
#include "fuzz.h"
#include "pickle/machine.h"
#include "pickle/opcode.h"

namespace zerocopy::fuzz {
namespace {

// Checks that list_globals() lists every global that the machine meets.
void check_listed(const Document& document, const std::vector<GlobalName>& listed) {
  for (const Global* global : document.externals) {
    const GlobalName name{global->module, global->name};
    check(std::binary_search(listed.begin(), listed.end(), name), "every global was listed");
  }
}

void run(const Region& pickle) {
  // The most expensive byte is an empty container: a node of 32 bytes, and entries on the stack and
  // in a list.
  const TimeLimit time(pickle.size());
  const MemoryLimit memory(kMiB + 128 * std::uint64_t{pickle.size()});
  const std::vector<GlobalName> listed = list_globals(pickle.bytes());
  succeeds([&] { check(pickle_size(pickle.bytes()) <= pickle.size(), "a pickle ends inside its bytes"); });
  for (const PersistentId form : {PersistentId::storage, PersistentId::storage_with_view}) {
    succeeds([&] {
      const Document document = read_pickle(pickle, {.ids = form});
      check_document(document);
      check_listed(document, listed);
    });
  }
}

}  // namespace
}  // namespace zerocopy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  zerocopy::fuzz::run(zerocopy::fuzz::region_of(data, size));
  return 0;
}

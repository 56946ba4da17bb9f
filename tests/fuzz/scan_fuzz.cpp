// The walk that lists a pickle's content, compared with the machine.
#include <algorithm>

#include "fuzz.h"
#include "pickle/effects.h"
#include "pickle/machine.h"
#include "pickle/opcode.h"
#include "pickle/scan.h"

namespace zerocopy::fuzz {
namespace {

constexpr std::size_t kLimit = 100;

bool lists(const PickleScan& scan, const Global& global) {
  return std::any_of(scan.globals.begin(), scan.globals.end(), [&](const ScannedGlobal& scanned) {
    return scanned.module == global.module && scanned.name == global.name;
  });
}

void check_effects(const Document& document) {
  const Effects effects = effects_of(document);
  for (const NamePair& name : effects.created) {
    check(std::any_of(document.externals.begin(), document.externals.end(),
                      [&](const Global* global) { return NamePair(global->module, global->name) == name; }),
          "what is made anew is a global of the file");
  }
}

void run(const Region& pickle) {
  // The worst case is a memo with one entry per page: 512 bytes for five.
  const TimeLimit time(pickle.size());
  const MemoryLimit memory(kMiB + 256 * std::uint64_t{pickle.size()});
  const PickleScan scan = scan_pickle(pickle.bytes(), kLimit);
  check(scan.end <= pickle.size(), "a pickle ends inside its bytes");
  check(scan.globals.size() <= kLimit, "no more globals than wanted");
  check(scan.stopped == scan.fault.empty(), "STOP or a fault");
  check(scan.stopped == succeeds([&] { pickle_size(pickle.bytes()); }), "all walks end at one place");
  succeeds([&] {
    const Document document = read_pickle(pickle);
    check_effects(document);
    for (const Global* global : document.externals) {
      check(scan.globals_left_out != 0 || lists(scan, *global),
            "every global that the machine met is listed");
    }
  });
}

}  // namespace
}  // namespace zerocopy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  zerocopy::fuzz::run(zerocopy::fuzz::region_of(data, size));
  return 0;
}

#include "pickle/scan.h"

#include "pickle/effects.h"
#include "pickle/machine.h"
#include "support.h"

namespace zerocopy::test::scan_test {
namespace {

// Formats a scan: "os.system*2(called) "
std::string scanned(std::string_view bytes) {
  const Region pickle = region_of(bytes);
  std::string text;
  for (const ScannedGlobal& global : scan_pickle(pickle.bytes(), 3).globals) {
    text += std::string(global.module) + "." + std::string(global.name) + "*" + std::to_string(global.uses) +
            (global.called ? "(called) " : " ");
  }
  return text;
}

TEST(ScanPickle, CountsNamesAndCalls) {
  EXPECT_EQ(scanned("cos\nsystem\n."), "os.system*1 ");
  EXPECT_EQ(scanned("cos\nsystem\n)R."), "os.system*1(called) ");
  EXPECT_EQ(scanned("cos\nsystem\n)\x81."), "os.system*1(called) ");
  EXPECT_EQ(scanned("cos\nsystem\n)}\x92."), "os.system*1(called) ");
  EXPECT_EQ(scanned("(cos\nsystem\nNo."), "os.system*1(called) ");
  EXPECT_EQ(scanned("(ios\nsystem\n."), "os.system*1(called) ");
  EXPECT_EQ(scanned("cos\nsystem\nq\1cos\nsystem\n00h\1)R."), "os.system*2(called) ");
}

TEST(ScanPickle, StackGlobalUsesTheStack) {
  EXPECT_EQ(scanned("\x8c\2os\x8c\6system\x8c\5decoy0\x93."), "os.system*1 ");
  EXPECT_EQ(scanned("S'os'\nS'system'\n\x93."), "os.system*1 ");
  EXPECT_EQ(scanned("\x8c\2os\x94(N1\x8c\6systemp7\n00h\0g7\n\x93."sv), "os.system*1 ");
  EXPECT_EQ(scanned("N\x8c\6system\x93."), "");
  EXPECT_EQ(scan_pickle(region_of("N\x8c\6system\x93.").bytes(), 3).unresolved.count, 1U);
}

TEST(ScanPickle, LimitsGlobals) {
  EXPECT_EQ(scanned("ca\n\ncb\n\ncc\n\ncd\n\nca\n\n."), "a.*2 b.*1 c.*1 ");
  EXPECT_EQ(scan_pickle(region_of("ca\n\ncb\n\nca\n\n.").bytes(), 1).globals_left_out, 1U);
}

TEST(ScanPickle, ReportsTheEnd) {
  const PickleScan whole = scan_pickle(region_of("N.junk").bytes(), 1);
  EXPECT_TRUE(whole.stopped && whole.end == 2 && whole.fault.empty());
  const PickleScan cut = scan_pickle(region_of("NX\5").bytes(), 1);
  EXPECT_TRUE(!cut.stopped && cut.truncated && cut.end == 1 && !cut.fault.empty());
  const PickleScan broken = scan_pickle(region_of("N\xff").bytes(), 1);
  EXPECT_TRUE(!broken.stopped && !broken.truncated && broken.end == 1);
}

TEST(Effects, CallsAndAttributes) {
  const Document document =
      read_pickle(region_of("(ca\nb\n)R}bca\nb\n)\x81"
                            "ccollections\nOrderedDict\n)R}X\1\0\0\0kNsbt."sv));
  const Effects effects = effects_of(document);
  EXPECT_TRUE(effects.called.contains({"a", "b"}) && effects.changed.contains({"a", "b"}));
  EXPECT_TRUE(effects.created.contains({"a", "b"}) && !effects.odd);
  EXPECT_TRUE(effects.attributes.contains({{"collections", "OrderedDict"}, "k"}));
  EXPECT_EQ(effects.attributes.size(), 1U);
}

}  // namespace
}  // namespace zerocopy::test::scan_test

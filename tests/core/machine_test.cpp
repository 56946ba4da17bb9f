#include "pickle/machine.h"

#include "support.h"

namespace zerocopy::test::machine_test {
namespace {

Document read(std::string_view pickle) { return read_pickle(region_of(pickle)); }

Kind kind_of(std::string_view pickle) { return read(pickle).root.kind(); }

std::string times(std::size_t count, std::string_view part) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) all += part;
  return all;
}

std::string text(std::string_view content) { return "X" + u32(content.size()) + std::string(content); }

const std::string kOrderedDict = "ccollections\nOrderedDict\n";
const std::string kEmptyOrderedDict = kOrderedDict + ")R";
const std::string kId =
    "(" + text("storage") + "ctorch\nFloatStorage\n" + text("0") + text("cpu") + "K\x10tQ";
const std::string kShape = "K\0K\x10\x85K\1\x85"s;  // offset 0, size (16,), stride (1,)
const std::string kTensor =
    "ctorch._utils\n_rebuild_tensor_v2\n(" + kId + kShape + "\x89" + kEmptyOrderedDict + "tR";

#define EXPECT_FORMAT(pickle) EXPECT_THROW(read(pickle), FormatError) << quote(pickle)
#define EXPECT_REFUSED(pickle) EXPECT_THROW(read(pickle), RefusedError) << quote(pickle)
#define EXPECT_UNSUPPORTED(pickle) EXPECT_THROW(read(pickle), UnsupportedError) << quote(pickle)

TEST(Machine, PlainValues) {
  EXPECT_EQ(kind_of("N."), Kind::none);
  EXPECT_EQ(kind_of("\x88."), Kind::boolean);
  EXPECT_TRUE(read("\x88.").root.boolean());
  EXPECT_FALSE(read("\x89.").root.boolean());
  EXPECT_EQ(kind_of("G\0\0\0\0\0\0\0\0."sv), Kind::real);
  EXPECT_EQ(kind_of("X\1\0\0\0a."sv), Kind::text);
  EXPECT_EQ(kind_of("\x8c\1a."), Kind::text);
  EXPECT_EQ(kind_of("U\1a."), Kind::byte_string);
  EXPECT_EQ(kind_of("C\1a."), Kind::bytes);
  EXPECT_EQ(kind_of("\x96\1\0\0\0\0\0\0\0a."sv), Kind::byte_array);
  EXPECT_EQ(kind_of(")."), Kind::tuple);
  EXPECT_EQ(kind_of("]."), Kind::list);
  EXPECT_EQ(kind_of("}."), Kind::dict);
  EXPECT_EQ(kind_of("\x8f."), Kind::set);
  EXPECT_EQ(kind_of("(\x91."), Kind::frozenset);
  EXPECT_EQ(kind_of("cos\nsystem\n."), Kind::global);
}

TEST(Machine, Integers) {
  EXPECT_EQ(read("K\xff.").root.integer(), 255);
  EXPECT_EQ(read("J\xff\xff\xff\xff.").root.integer(), -1);
  EXPECT_EQ(read("\x8a\0."sv).root.integer(), 0);
  EXPECT_EQ(read("\x8a\1\xff.").root.integer(), -1);
  EXPECT_EQ(read("\x8a\2\xff\0."sv).root.integer(), 255);
  for (const std::int64_t number :
       {INT64_MIN, INT64_MIN / 2 - 1, INT64_MIN / 2, std::int64_t{-1} << 61U, (std::int64_t{1} << 61U) - 1,
        std::int64_t{1} << 61U, INT64_MAX / 2, INT64_MAX}) {
    const Document document = read("\x8a\x8" + little(number) + ".");
    ASSERT_EQ(document.root.kind(), Kind::integer) << number;
    EXPECT_EQ(document.root.integer(), number);
  }
  EXPECT_EQ(kind_of("\x8a\x9" + little(std::uint64_t{0}) + "\1."), Kind::big_integer);
}

TEST(Machine, Tuples) {
  for (const auto& [pickle, size] : std::vector<std::pair<std::string, std::size_t>>{
           {")", 0}, {"N\x85", 1}, {"NN\x86", 2}, {"NNN\x87", 3}, {"(t", 0}, {"(NNNNt", 4}, {"N(Nt", 1}}) {
    EXPECT_EQ(read(pickle + ".").root.as<Sequence>().items.size(), size) << pickle;
  }
}

TEST(Machine, Containers) {
  EXPECT_EQ(read("](K\1K\2e.").root.as<Sequence>().items.size(), 2U);
  EXPECT_EQ(read("]K\1aK\2a.").root.as<Sequence>().items[1].integer(), 2);
  EXPECT_EQ(read("}(K\1NK\2Nu.").root.as<Mapping>().items.size(), 2U);
  EXPECT_EQ(read("}K\1Ns.").root.as<Mapping>().items.size(), 1U);
  EXPECT_EQ(read("\x8f(K\1K\2\x90.").root.as<Sequence>().items.size(), 2U);
  EXPECT_EQ(read("](" + times(1000, "N") + "e.").root.as<Sequence>().items.size(), 1000U);
}

TEST(Machine, MemoSharesNodes) {
  const Document document = read("]q\0(h\0j\0\0\0\0e."sv);
  const auto& items = document.root.as<Sequence>().items;
  EXPECT_EQ(&items[0].node(), &document.root.node());
  EXPECT_EQ(&items[1].node(), &document.root.node());
  const Document memoized = read("\x80\4]\x94}\x94h\0h\1\x86."sv);
  EXPECT_EQ(memoized.root.as<Sequence>().items[1].kind(), Kind::dict);
}

TEST(Machine, Tensor) {
  const Document document = read(kTensor + ".");
  ASSERT_EQ(document.root.kind(), Kind::tensor);
  const auto& tensor = document.root.as<Tensor>();
  EXPECT_EQ(tensor.storage->key, "0");
  EXPECT_EQ(tensor.storage->location, "cpu");
  EXPECT_EQ(tensor.storage->nbytes, 64U);
  EXPECT_EQ(tensor.dtype, dtype_by_name("float32"));
  EXPECT_EQ(document.storages.size(), 1U);
  EXPECT_TRUE(document.externals.empty());
}

TEST(Machine, RefusesEveryCut) {
  refuses_every_cut<FormatError>("\x80\2}(" + text("weight") + kTensor + text("state") + kEmptyOrderedDict +
                                     "}" + text("_metadata") + "}sbu.",
                                 read);
}

// Checks that a changed byte leads to a Document or an Error, and nothing else.
TEST(Machine, SurvivesEveryFlip) {
  const std::string good =
      "\x80\2}(" + text("w") + kTensor + "K\1\x8a\1\1K\2\x8f(K\1\x90K\3cos\nsystem\n)RN]}a\x86u.";
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (unsigned mask = 1; mask < 256; ++mask) {
      std::string bad = good;
      bad[at] = static_cast<char>(static_cast<unsigned char>(bad[at]) ^ mask);
      try {
        read(bad);
      } catch (const Error&) {  // any error of the library
      }
    }
  }
}

TEST(Machine, StackUnderflow) {
  for (const auto bad : {"."sv,   "\x85."sv, "N\x86."sv,    "NN\x87."sv, "R."sv,      ")R."sv,     "\x81."sv,
                         "b."sv,  "}b."sv,   "q\0."sv,      "\x94."sv,   "Na."sv,     "s."sv,      "}Ns."sv,
                         "Q."sv,  "\x93."sv, "U\1a\x93."sv, "N(."sv,     "N(\x85."sv, "}(K\1s."sv, "t."sv,
                         "Nt."sv, "e."sv,    "u."sv,        "\x90."sv,   "\x91."sv,   "(e."sv,     "(u."sv}) {
    EXPECT_FORMAT(bad);
  }
}

TEST(Machine, AcceptsHarmlessOddities) {
  EXPECT_EQ(kind_of("\x80\xff]."), Kind::list);  // the protocol number is ignored
  EXPECT_EQ(kind_of("(((]."), Kind::list);
  EXPECT_EQ(kind_of("NNN]."), Kind::list);
  EXPECT_EQ(kind_of("].\xff\xff"), Kind::list);
}

TEST(Machine, Streams) {
  for (const auto bad :
       {"h\1."sv, "Nq\0h\1."sv, "j\xff\xff\xff\xff."sv, "Nr\xff\xff\xff\xff."sv, "Nr\0\0\1\0."sv, "}(NNNu."sv,
        "X\1\0\0\0\xff."sv, "X\2\0\0\0\xc0\x80."sv, "K\1K\2\x93."sv, "\x97."sv, "N\x98."sv, "\xff."sv,
        "}]Ns."sv, "}}Ns."sv, "}\x8fNs."sv, "}]\x85Ns."sv, "\x8f(]\x90."sv, "(]\x91."sv}) {
    EXPECT_FORMAT(bad);
  }
}

TEST(Machine, RareOpcodes) {
  for (const auto rare : {"NN0."sv, "(1."sv, "N2."sv, "(l."sv, "(d."sv, "I1\n."sv, "L1L\n."sv, "F1\n."sv,
                          "S'a'\n."sv, "Va\n."sv, "Np0\n."sv, "Np99999999999999999999999\n."sv, "g0\n."sv}) {
    EXPECT_UNSUPPORTED(rare);
  }
}

TEST(Machine, OtherWaysToCall) {
  for (const auto bad : {"(ios\nsystem\n."sv, "(cos\nsystem\no."sv, "cos\nsystem\n)}\x92."sv, "\x82\1."sv,
                         "\x83\1\0."sv, "\x84\1\0\0\0."sv, "Pid\n."sv}) {
    EXPECT_REFUSED(bad);
  }
}

TEST(Machine, WrongTargets) {
  for (const std::string& target :
       {"N"s, "K\1"s, ")"s, "X\1\0\0\0a"s, kTensor, kId, kOrderedDict, "ctorch\nTensor\n"s}) {
    EXPECT_REFUSED(target + "Na.");
    EXPECT_REFUSED(target + "(Ne.");
    EXPECT_REFUSED(target + "(N\x90.");
    EXPECT_REFUSED(target + "K\1Ns.");
    EXPECT_REFUSED(target + "(K\1Nu.");
    EXPECT_REFUSED(target + "}b.");
  }
  EXPECT_REFUSED("}Na.");
  EXPECT_REFUSED("]K\1Ns.");
  EXPECT_REFUSED("](N\x90.");
  EXPECT_REFUSED("\x8f(Ne.");
  EXPECT_REFUSED("}}b.");
  EXPECT_REFUSED(kEmptyOrderedDict + "]b.");
  EXPECT_REFUSED(kEmptyOrderedDict + "}b}b.");
}

TEST(Machine, ExternalGlobalsAreOnlyNamed) {
  const Document document = read("cos\nsystem\n" + text("true") + "\x85R}b.");
  ASSERT_EQ(document.root.kind(), Kind::object);
  const auto& object = document.root.as<Object>();
  EXPECT_EQ(object.callable->module, "os");
  EXPECT_EQ(object.callable->name, "system");
  EXPECT_EQ(object.call, Object::Call::reduce);
  EXPECT_EQ(object.steps.size(), 1U);
  EXPECT_EQ(document.externals.size(), 1U);
  EXPECT_EQ(read("cos\nsystem\n)\x81.").root.as<Object>().call, Object::Call::create);
  EXPECT_EQ(read("cos\nsystem\n)RNaK\1Ns.").root.as<Object>().steps.size(), 2U);
}

TEST(Machine, CallsOfOtherThings) {
  EXPECT_REFUSED("N)R.");
  EXPECT_REFUSED(kEmptyOrderedDict + ")R.");
  EXPECT_REFUSED("cos\nsystem\n)R)R.");
  EXPECT_REFUSED(kOrderedDict + ")\x81.");
  EXPECT_REFUSED("ctorch\nfloat32\n)R.");
  EXPECT_REFUSED("ctorch\nFloatStorage\nK\1\x85R.");
  EXPECT_REFUSED("ctorch.nn.parameter\nParameter\n" + kTensor + "\x85R.");
  EXPECT_FORMAT(kOrderedDict + "]R.");
}

// Objects for which only a stub can stand.
TEST(Machine, CallsForStubs) {
  const auto stub = [](const std::string& pickle) {
    return read_pickle(region_of("\x80\2" + pickle + "."), {.stubs = true});
  };
  for (const auto& called :
       {"cos\nsystem\n)R"s, "(ios\nsystem\n"s, "(cos\nsystem\no"s, "cos\nsystem\n)}\x92"s}) {
    for (const auto& again : {""s, ")R"s, ")R)R"s}) {
      const Document document = stub(called + again);
      ASSERT_EQ(document.root.kind(), Kind::object) << quote(called + again);
      EXPECT_EQ(document.root.as<Object>().callable->name, "system");
      EXPECT_EQ(document.root.as<Object>().called != nullptr, !again.empty());
    }
  }
  // setter(object, state), dropped; but not where the result is stored.
  const std::string object = "cos\nsystem\n)Rq\1";
  EXPECT_EQ(stub(object + "cset\nter\nh\1}\x86R0").root.as<Object>().steps.size(), 1U);
  EXPECT_EQ(stub(object + "cset\nter\nh\1}\x86Rq\2" + "0").root.as<Object>().steps.size(), 0U);
  for (const auto& bad : {"N)R"s, "0"s, "(o"s, "2"s, "\x82\1"s, "cos\nsystem\n)R]R"s}) {
    EXPECT_THROW(stub(bad), Error) << quote(bad);
  }
}

TEST(MachineLimits, Depth) {
  EXPECT_NO_THROW(read(times(1000, "]") + times(999, "a") + "."));
  EXPECT_FORMAT(times(1100, "]") + times(1099, "a") + ".");
  EXPECT_FORMAT("N" + times(200'000, "\x85") + ".");
  EXPECT_FORMAT(times(50'000, "}K\1") + "N" + times(50'000, "s") + ".");
}

TEST(MachineLimits, MarksAndStack) {
  EXPECT_NO_THROW(read(times(1'000'000, "(") + "N."));
  EXPECT_FORMAT(times(1'000'001, "(") + "N.");
  EXPECT_NO_THROW(read(times(1'000'000, "N") + "."));
  EXPECT_FORMAT(times(1'000'001, "N") + ".");
}

// A deflated pickle may have a million opcodes, plus 64 per byte in the file.
TEST(MachineLimits, OpcodesOfDeflatedPickles) {
  const auto pickle = [](std::size_t opcodes) { return "]" + times((opcodes - 1) / 2, "Na") + "."; };
  EXPECT_NO_THROW(read_pickle(region_of(pickle(1'000'639)), {.stored = 10}));
  EXPECT_THROW(read_pickle(region_of(pickle(1'000'641)), {.stored = 10}), FormatError);
  EXPECT_NO_THROW(read_pickle(region_of(pickle(1'000'641))));
}

TEST(MachineLimits, SharingCostsNothing) {
  EXPECT_NO_THROW(read("K\1" + times(60, "q\0h\0\x86"s) + "."));
  EXPECT_NO_THROW(read("N" + times(30, "q\0]("s + times(10, "h\0"s) + "e") + "."));
}

TEST(MachineLimits, Keys) {
  for (const auto good : {"N"sv, "\x88"sv, "K\1"sv, "\x8a\x9\1\1\1\1\1\1\1\1\1"sv, "U\1a"sv, "C\1a"sv, ")"sv,
                          "K\1\x85"sv, "ctorch\nfloat32\n"sv, "G\0\0\0\0\0\0\0\0"sv}) {
    EXPECT_NO_THROW(read("}" + std::string(good) + "Ns.")) << quote(good);
  }
  EXPECT_NO_THROW(read("}N" + times(8, "\x85") + "Ns."));
  EXPECT_FORMAT("}N" + times(9, "\x85") + "Ns.");
  EXPECT_NO_THROW(read("}(" + times(1000, "N") + "tNs."));
  EXPECT_FORMAT("}(" + times(1025, "N") + "tNs.");
  EXPECT_FORMAT("}K\1" + times(40, "q\0h\0\x86"s) + "Ns.");
  EXPECT_NO_THROW(read("}" + kTensor + "Ns."));
  EXPECT_NO_THROW(read("}" + kId + "Ns."));
  EXPECT_NO_THROW(read("}cos\nsystem\nNs."));
  // Frozen sets, sizes and objects count their items.
  EXPECT_NO_THROW(read("}(\x91Ns."));
  EXPECT_FORMAT("}((" + times(1025, "N") + "t\x91Ns.");
  EXPECT_NO_THROW(read("}c__main__\nA\n)RNs."));
  EXPECT_FORMAT("}c__main__\nA\n](" + times(1025, "N") + "e\x85RNs.");
  EXPECT_FORMAT("}c__main__\nA\n((" + times(1025, "N") + "ttRNs.");
  EXPECT_FORMAT("}c__main__\nA\n)R}K\1(" + times(1025, "N") + "tsbNs.");
}

// Each use of a long tuple as a key hashes all of it, and a few bytes can repeat that.
TEST(MachineLimits, RepeatedKeys) {
  const std::string tuple = "(" + times(1000, "K\1") + "tq\0"s;
  EXPECT_NO_THROW(read("](" + tuple + "e}(h\0Nua."s));
  EXPECT_FORMAT("](" + tuple + "e" + "}(" + times(5000, "h\0N"s) + "ua.");
}

// Checks that a few bytes cannot repeat a large copy.
TEST(MachineLimits, Copies) {
  const std::string long_text = text(std::string(100'000, 'a'));
  const auto again = [&](const std::string& setup, const std::string& call) {
    return setup + "]" + times(1000, call + "a") + ".";
  };
  for (const auto* codec : {"latin1", "utf-8", "ascii"}) {
    const std::string setup = long_text + "q\0c_codecs\nencode\nq\1"s + text(codec) + "q\2";
    EXPECT_FORMAT(again(setup, "h\1h\0h\2\x86R"s)) << codec;
  }
  EXPECT_FORMAT(again("C\xff" + std::string(255, 'a') + "q\0cbuiltins\nbytearray\nq\1"s, "h\1h\0\x85R"s));
  const std::string list = "](" + times(100'000, "N") + "e";
  EXPECT_FORMAT(again(list + "q\0cbuiltins\nset\nq\1"s, "h\1h\0\x85R"s));
}

#undef EXPECT_FORMAT
#undef EXPECT_REFUSED
#undef EXPECT_UNSUPPORTED

}  // namespace
}  // namespace zerocopy::test::machine_test

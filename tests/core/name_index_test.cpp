#include "checkpoint/name_index.h"

#include "pickle/machine.h"
#include "support.h"

namespace zerocopy::test::name_index_test {
namespace {

std::string text(std::string_view content) {
  return "\x8c" + std::string(1, static_cast<char>(content.size())) + std::string(content);
}

// Returns the pickle of a dict, from the pickles of its keys and values.
std::string dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string pickle = "}(";
  for (const auto& [key, value] : items) pickle += key + value;
  return pickle + "u";
}

std::vector<std::string> names(const std::string& pickle) {
  const Document document = read_pickle(region_of(pickle + "."));
  const NameIndex name_index(document);
  std::vector<std::string> found;
  for (std::size_t i = 0; i < name_index.leaves().size(); ++i) {
    found.emplace_back(name_index.leaves()[i].name);
    EXPECT_EQ(name_index.find(found.back()), i);
  }
  EXPECT_FALSE(name_index.find("no such name"));
  return found;
}

using Names = std::vector<std::string>;

const std::string sparse = "ctorch._utils\n_rebuild_sparse_tensor\n)R";

// Returns the pickle of an object with attributes.
std::string object(const std::string& attributes) { return "cmine\nNet\n)\x81" + attributes + "b"; }

std::string module(const std::string& modules, const std::string& attributes = "") {
  const std::string buffers = dict({{text("kept"), sparse}, {text("gone"), sparse}});
  const std::string state =
      dict({{text("_parameters"), dict({{text("weight"), sparse}, {text("bias"), "N"}})},
            {text("_buffers"), buffers},
            {text("_non_persistent_buffers_set"), "\x8f(" + text("gone") + "\x90"},
            {text("_modules"), modules}});
  return object(state + (attributes.empty() ? "" : "(" + attributes + "u"));
}

TEST(NameIndex, TensorsInsideObjectsFollowThem) {
  EXPECT_EQ(names(dict({{text("net"), module(dict({{text("a"), module("}")}}))}, {text("step"), "K\1"}})),
            (Names{"net", "net.weight", "net.kept", "net.a.weight", "net.a.kept", "step"}));
  EXPECT_EQ(names(module("}", text("extra") + "](" + sparse + "K\1e")), (Names{"", "weight", "kept"}));
  EXPECT_EQ(names("cmine\ngraph\n" +
                  dict({{text("_parameters"), dict({{text("w"), sparse}})},
                        {text("_buffers"), "}"},
                        {text("_modules"), "}"}}) +
                  "N\x86R"),
            (Names{"", "w"}));
  EXPECT_EQ(names(object("N" + dict({{text("slot"), sparse}}) + "\x86")), (Names{"", "slot"}));
  EXPECT_EQ(names(object("](" + sparse + "e")), (Names{"", "0"}));
  EXPECT_EQ(names("cmine\nmake\n" + sparse + dict({{text("a"), sparse}}) + "\x86R"), (Names{"", "0", "a"}));
}

TEST(NameIndex, ModulesHaveEachOfTheirNamesAndOtherObjectsOne) {
  const std::string shared = module("}") + "q\0"s;
  EXPECT_EQ(names(module(dict({{text("a"), shared}, {text("b"), "h\0"s}}), text("again") + "h\0"s)),
            (Names{"", "weight", "kept", "a.weight", "a.kept", "b.weight", "b.kept"}));
  const std::string box = object(dict({{text("t"), sparse}})) + "q\0"s;
  EXPECT_EQ(names("](" + box + "h\0"s + object(dict({{text("of"), "h\0"s}})) + "e"),
            (Names{"0", "0.t", "1", "1.t", "2"}));
  EXPECT_EQ(names("cmine\nNet\n)\x81q\0"s + dict({{text("self"), "h\0"s}, {text("t"), sparse}}) + "b"),
            (Names{"", "t"}));
}

TEST(NameIndex, ModulesOutOfProportionAreRefused) {
  std::string pickle = module("}") + "q\0"s;
  for (int i = 1; i < 24; ++i) {
    const std::string before = "h"s + static_cast<char>(i - 1);
    pickle += module(dict({{text("a"), before}, {text("b"), before}, {text("c"), before}})) + "q"s +
              static_cast<char>(i);
  }
  const Document document = read_pickle(region_of(pickle + "."));
  EXPECT_THROW(NameIndex name_index(document), FormatError);
}

}  // namespace
}  // namespace zerocopy::test::name_index_test

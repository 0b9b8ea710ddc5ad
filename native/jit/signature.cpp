#include "jit/signature.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <span>

#include "base/error.hpp"
#include "base/float_types.hpp"
#include "jit/source.hpp"

namespace gpk::jit {

namespace {

using Tokens = std::span<const Token>;
using Words = std::vector<std::string>;

const std::map<std::string, DType, std::less<>> kNamedTypes = {
    {"size_t", DType::uint64},
    {"ptrdiff_t", DType::int64},
    {"int8_t", DType::int8},
    {"int16_t", DType::int16},
    {"int32_t", DType::int32},
    {"int64_t", DType::int64},
    {"uint8_t", DType::uint8},
    {"uint16_t", DType::uint16},
    {"uint32_t", DType::uint32},
    {"uint64_t", DType::uint64},
    {"intptr_t", DType::int64},
    {"uintptr_t", DType::uint64},
    {"half", DType::float16},
    {"__half", DType::float16},
    {"nv_bfloat16", DType::bfloat16},
    {"__nv_bfloat16", DType::bfloat16},
    {"__nv_fp8_e4m3", DType::float8_e4m3},
    {"__nv_fp8_e5m2", DType::float8_e5m2},
};

// Sorted words of the built-in types; "long" is 64 bits wide where this runs.
static_assert(sizeof(long) == 8);
const std::map<std::string, DType, std::less<>> kBuiltinTypes = {
    {"bool", DType::bool_},
    {"char", DType::int8},
    {"char signed", DType::int8},
    {"char unsigned", DType::uint8},
    {"short", DType::int16},
    {"int short", DType::int16},
    {"short signed", DType::int16},
    {"int short signed", DType::int16},
    {"short unsigned", DType::uint16},
    {"int short unsigned", DType::uint16},
    {"int", DType::int32},
    {"signed", DType::int32},
    {"int signed", DType::int32},
    {"unsigned", DType::uint32},
    {"int unsigned", DType::uint32},
    {"long", DType::int64},
    {"int long", DType::int64},
    {"long signed", DType::int64},
    {"int long signed", DType::int64},
    {"long long", DType::int64},
    {"int long long", DType::int64},
    {"long long signed", DType::int64},
    {"int long long signed", DType::int64},
    {"long unsigned", DType::uint64},
    {"int long unsigned", DType::uint64},
    {"long long unsigned", DType::uint64},
    {"int long long unsigned", DType::uint64},
    {"float", DType::float32},
    {"double", DType::float64},
};

const std::set<std::string, std::less<>> kBuiltinWords = {"bool",   "char",     "short", "int",    "long",
                                                          "signed", "unsigned", "float", "double", "void"};
const std::set<std::string, std::less<>> kIgnoredWords = {"volatile",     "restrict",          "__restrict",
                                                          "__restrict__", "__grid_constant__", "register"};

bool is(const Token& token, std::string_view text) { return token.text == text; }

Error refuse(std::string_view source, std::string_view function, std::size_t offset, std::string expected,
             std::string got, std::string fix = {}) {
    const std::size_t line = line_of(source, offset);
    return error(ErrorKind::compile, {.call = str("kernel '", function, "', line ", line),
                                      .expected = std::move(expected),
                                      .got = std::move(got),
                                      .fix = std::move(fix)});
}

// Simple names for types that the source itself gives: using, typedef and #define without parameters.
using Aliases = std::map<std::string, Words, std::less<>>;

Words words_of(Tokens tokens) {
    Words words;
    for (const Token& token : tokens) words.emplace_back(token.text);
    return words;
}

void add_alias(Aliases& aliases, Tokens tokens) {
    if (tokens.size() >= 4 && is(tokens[0], "using") && is(tokens[2], "=")) {
        aliases[std::string(tokens[1].text)] = words_of(tokens.subspan(3));
    } else if (tokens.size() >= 3 && is(tokens[0], "typedef") &&
               tokens.back().kind == TokenKind::identifier) {
        aliases[std::string(tokens.back().text)] = words_of(tokens.subspan(1, tokens.size() - 2));
    }
}

void add_define(Aliases& aliases, std::string_view directive) {
    const std::vector<Token> tokens = tokenize(directive.substr(1));
    if (tokens.size() < 3 || !is(tokens[0], "define")) return;
    const bool has_parameters =
        is(tokens[2], "(") && tokens[2].offset == tokens[1].offset + tokens[1].text.size();
    if (!has_parameters) aliases[std::string(tokens[1].text)] = words_of(Tokens(tokens).subspan(2));
}

struct Declaration {
    std::string qualified;
    bool extern_c = false;
    bool is_template = false;
    bool defined = false;
    std::size_t offset = 0;
    Tokens parameters;
    Aliases aliases;  // those known where it stands
};

std::size_t closing(Tokens tokens, std::size_t open) {
    int depth = 0;
    for (std::size_t i = open; i < tokens.size(); ++i) {
        if (is(tokens[i], "(")) ++depth;
        if (is(tokens[i], ")") && --depth == 0) return i;
    }
    return tokens.size();
}

// Every __global__ function of the source, in order.
std::vector<Declaration> find_kernels(Tokens tokens) {
    struct Scope {
        std::string prefix;  // "detail::" in a namespace
        bool extern_c = false;
        bool names = true;  // holds declarations; false in a function's or class's body
    };
    std::vector<Scope> scopes = {{}};
    std::vector<Declaration> kernels;
    Aliases aliases;
    std::size_t begin = 0;  // of the statement at hand
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const Token& token = tokens[i];
        if (token.kind == TokenKind::directive) {
            add_define(aliases, token.text);
            if (begin == i) begin = i + 1;
        } else if (is(token, "{")) {
            const Tokens head = tokens.subspan(begin, i - begin);
            Scope inner = scopes.back();
            const bool opens_extern_c = head.size() == 2 && is(head[0], "extern") && is(head[1], "\"C\"");
            const auto space =
                std::find_if(head.begin(), head.end(), [](auto& t) { return is(t, "namespace"); });
            if (opens_extern_c) {
                inner.extern_c = true;
            } else if (space != head.end()) {
                for (auto word = space + 1; word != head.end(); ++word) inner.prefix += word->text;
                if (space + 1 != head.end()) inner.prefix += "::";
            } else {
                inner.names = false;
            }
            scopes.push_back(inner);
            begin = i + 1;
        } else if (is(token, "}")) {
            if (scopes.size() > 1) scopes.pop_back();
            begin = i + 1;
        } else if (is(token, ";")) {
            if (scopes.back().names) add_alias(aliases, tokens.subspan(begin, i - begin));
            begin = i + 1;
        } else if (is(token, "__global__") && scopes.back().names) {
            // <attributes> void <attributes>(..) name ( parameters )
            std::size_t name = i + 1;
            std::size_t open = tokens.size();
            for (; name + 1 < tokens.size(); ++name) {
                if (is(tokens[name], ";") || is(tokens[name], "{")) break;
                if (tokens[name].kind != TokenKind::identifier || !is(tokens[name + 1], "(")) continue;
                if (tokens[name].text.substr(0, 2) == "__") {  // __launch_bounds__(..) and the like
                    name = closing(tokens, name + 1);
                    continue;
                }
                open = name + 1;
                break;
            }
            const std::size_t close = open < tokens.size() ? closing(tokens, open) : tokens.size();
            if (close >= tokens.size()) continue;
            const Tokens head = tokens.subspan(begin, i - begin);
            Declaration found;
            found.qualified = scopes.back().prefix + std::string(tokens[name].text);
            found.extern_c = scopes.back().extern_c;
            for (std::size_t k = 0; k < head.size(); ++k) {
                found.is_template |= is(head[k], "template");
                found.extern_c |= is(head[k], "\"C\"");
            }
            for (std::size_t k = i; k < name; ++k) found.extern_c |= is(tokens[k], "\"C\"");
            found.defined = close + 1 < tokens.size() && is(tokens[close + 1], "{");
            found.offset = tokens[name].offset;
            found.parameters = tokens.subspan(open + 1, close - open - 1);
            found.aliases = aliases;
            kernels.push_back(std::move(found));
            i = close;
        }
    }
    return kernels;
}

std::string joined(const Words& words) {
    std::string text;
    for (const std::string& word : words) {
        const bool tight = text.empty() || word == "*" || word == "::" || text.ends_with("::");
        text += (tight ? "" : " ") + word;
    }
    return text;
}

// One parameter's tokens, without its name, to a type.
class ParameterParser {
   public:
    ParameterParser(std::string_view source, std::string_view function, const Aliases& aliases)
        : source_(source), function_(function), aliases_(aliases) {}

    Parameter parse(Tokens tokens) const {
        Parameter result;
        const std::size_t offset = tokens.front().offset;
        refuse_what_cannot_be_passed(tokens);
        bool array = false;
        if (const auto bracket =
                std::find_if(tokens.begin(), tokens.end(), [](auto& t) { return is(t, "["); });
            bracket != tokens.end()) {
            array = true;
            tokens = tokens.first(static_cast<std::size_t>(bracket - tokens.begin()));
        }
        // The last word is the name if something else makes the type.
        if (tokens.size() >= 2 && tokens.back().kind == TokenKind::identifier &&
            !is_type_word(tokens.back().text) && !is(tokens[tokens.size() - 2], "::") &&
            has_type(tokens.first(tokens.size() - 1))) {
            result.name = tokens.back().text;
            tokens = tokens.first(tokens.size() - 1);
        }
        Words words = expand(words_of(tokens), offset);
        if (array) words.emplace_back("*");
        return finish(std::move(result), words, offset);
    }

   private:
    static bool is_type_word(std::string_view word) {
        return kBuiltinWords.count(word) != 0 || kIgnoredWords.count(word) != 0 || word == "const";
    }

    static bool has_type(Tokens tokens) {
        return std::any_of(tokens.begin(), tokens.end(), [](const Token& token) {
            return token.kind == TokenKind::identifier && kIgnoredWords.count(token.text) == 0 &&
                   !is(token, "const");
        });
    }

    void refuse_what_cannot_be_passed(Tokens tokens) const {
        struct Rule {
            const char* mark;
            const char* got;
            const char* fix;
        };
        static constexpr Rule kRules[] = {
            {"=", "a default argument", "give every argument in the call"},
            {"&", "a reference", "take a pointer, or the number by value"},
            {"<", "a template type", "take pointers and numbers"},
            {"(", "a function pointer", "take pointers and numbers"},
            {".", "a variable number of arguments", "name each parameter"},
        };
        for (const Token& token : tokens) {
            for (const Rule& rule : kRules) {
                if (is(token, rule.mark)) {
                    throw refuse(source_, function_, token.offset, "parameters that are pointers or numbers",
                                 str(rule.got, " in '", joined(words_of(tokens)), "'"), rule.fix);
                }
            }
        }
    }

    Words expand(const Words& words, std::size_t offset) const {
        Words result = words;
        for (int depth = 0; depth < 16; ++depth) {
            Words next;
            bool changed = false;
            for (const std::string& word : result) {
                const auto alias = aliases_.find(word);
                if (alias == aliases_.end()) {
                    next.push_back(word);
                } else {
                    next.insert(next.end(), alias->second.begin(), alias->second.end());
                    changed = true;
                }
            }
            if (next.size() > 64) break;
            result = std::move(next);
            if (!changed) return result;
        }
        throw refuse(source_, function_, offset, "a type",
                     str("'", joined(words), "', whose names never end"));
    }

    Parameter finish(Parameter result, const Words& words, std::size_t offset) const {
        Words base;
        int stars = 0;
        bool constant = false;
        for (const std::string& word : words) {
            if (word == "*") {
                ++stars;
            } else if (word == "const") {
                constant |= stars == 0;
            } else if (kIgnoredWords.count(word) == 0) {
                base.push_back(word);
            }
        }
        if (base.empty() || (base.size() == 1 && (base[0] == "struct" || base[0] == "class"))) {
            throw refuse(source_, function_, offset, "a type", str("'", joined(words), "'"));
        }
        result.pointer = stars > 0;
        result.read_only = stars == 1 && constant;
        if (stars <= 1) result.dtype = dtype_of(base);
        if (!result.pointer && !result.dtype) {
            throw refuse(source_, function_, offset, "parameters that are pointers or numbers",
                         str("'", joined(base), "' by value"),
                         "pass its members one by one, or put it in an array and take a pointer");
        }
        result.type = (constant && result.pointer ? "const " : "") + joined(base) +
                      std::string(static_cast<std::size_t>(stars), '*');
        result.size = result.pointer ? sizeof(void*) : itemsize(*result.dtype);
        return result;
    }

    static std::optional<DType> dtype_of(const Words& base) {
        const bool builtin =
            std::all_of(base.begin(), base.end(), [](auto& word) { return kBuiltinWords.count(word) != 0; });
        if (builtin) {
            Words sorted = base;
            std::sort(sorted.begin(), sorted.end());
            const auto found = kBuiltinTypes.find(joined(sorted));
            return found == kBuiltinTypes.end() ? std::nullopt : std::optional(found->second);
        }
        std::string name = joined(base);
        for (const char* prefix : {"::std::", "std::", "::"}) {
            if (name.rfind(prefix, 0) == 0) {
                name.erase(0, std::string_view(prefix).size());
                break;
            }
        }
        const auto found = kNamedTypes.find(name);
        return found == kNamedTypes.end() ? std::nullopt : std::optional(found->second);
    }

    std::string_view source_, function_;
    const Aliases& aliases_;
};

std::vector<Tokens> split_parameters(Tokens tokens) {
    std::vector<Tokens> parts;
    int depth = 0;
    std::size_t begin = 0;
    for (std::size_t i = 0; i <= tokens.size(); ++i) {
        const std::string_view text = i < tokens.size() ? tokens[i].text : ",";
        if (text == "(" || text == "<" || text == "[") ++depth;
        if (text == ")" || text == ">" || text == "]") --depth;
        if ((text == "," && depth == 0) || i == tokens.size()) {
            parts.push_back(tokens.subspan(begin, i - begin));
            begin = i + 1;
        }
    }
    const bool none =
        parts.size() == 1 && (parts[0].empty() || (parts[0].size() == 1 && is(parts[0][0], "void")));
    if (none) parts.clear();
    return parts;
}

}  // namespace

std::string Signature::text() const {
    std::string result = name + "(";
    for (const Parameter& parameter : parameters) {
        if (&parameter != &parameters.front()) result += ", ";
        result += parameter.type + (parameter.name.empty() ? "" : " " + parameter.name);
    }
    return result + ")";
}

Signature parse_signature(std::string_view source, std::string_view function) {
    const std::vector<Token> tokens = tokenize(source);
    const std::vector<Declaration> kernels = find_kernels(tokens);
    const Declaration* chosen = nullptr;
    std::string names;
    const bool full_name = std::any_of(kernels.begin(), kernels.end(), [&](const Declaration& kernel) {
        return kernel.qualified == function;
    });
    for (const Declaration& kernel : kernels) {
        names += (names.empty() ? "'" : ", '") + kernel.qualified + "'";
        if (full_name ? kernel.qualified != function
                      : !kernel.qualified.ends_with("::" + std::string(function))) {
            continue;
        }
        if (chosen != nullptr && chosen->qualified != kernel.qualified) {
            throw refuse(source, function, kernel.offset, "one kernel of that name",
                         str("'", chosen->qualified, "' and '", kernel.qualified, "'"), "give its full name");
        }
        if (chosen != nullptr && chosen->defined == kernel.defined &&
            words_of(chosen->parameters) != words_of(kernel.parameters)) {
            throw refuse(source, function, kernel.offset, "one kernel of that name", "an overloaded one",
                         "give each its own name");
        }
        if (chosen == nullptr || kernel.defined) chosen = &kernel;
    }
    if (chosen == nullptr) {
        throw error(ErrorKind::compile,
                    {.call = "jit",
                     .argument = "func",
                     .expected = names.empty() ? "a source with a __global__ function" : "one of " + names,
                     .got = str("'", function, "'")});
    }
    if (chosen->is_template) {
        throw refuse(source, function, chosen->offset, "a plain kernel", "a template",
                     "add one that calls it with the types that you need");
    }
    Signature signature;
    signature.name = chosen->qualified;
    signature.extern_c = chosen->extern_c;
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
        signature.dynamic_shared |= is(tokens[i], "extern") && is(tokens[i + 1], "__shared__");
    }
    const ParameterParser parser(source, function, chosen->aliases);
    for (const Tokens part : split_parameters(chosen->parameters)) {
        if (part.empty()) {
            throw refuse(source, function, chosen->offset, "a parameter", "nothing between two commas");
        }
        Parameter parameter = parser.parse(part);
        parameter.offset = (signature.params_bytes + parameter.size - 1) / parameter.size * parameter.size;
        signature.params_bytes = parameter.offset + parameter.size;
        signature.parameters.push_back(std::move(parameter));
    }
    return signature;
}

std::string only_kernel(std::string_view source) {
    const std::vector<Token> tokens = tokenize(source);
    std::vector<std::string> names;
    for (const Declaration& kernel : find_kernels(tokens)) {
        if (std::find(names.begin(), names.end(), kernel.qualified) == names.end())
            names.push_back(kernel.qualified);
    }
    if (names.size() == 1) return names.front();
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "'" : ", '") + name + "'";
    throw error(ErrorKind::compile, {.call = "jit",
                                     .argument = "source",
                                     .expected = "one __global__ function",
                                     .got = names.empty() ? "none" : all,
                                     .fix = names.empty() ? "" : "name one with func="});
}

namespace {

Error refuse_argument(ErrorKind kind, const Signature& signature, const Parameter& parameter,
                      std::string got) {
    return error(kind, {.call = signature.text(),
                        .argument = parameter.name,
                        .expected = parameter.type,
                        .got = std::move(got)});
}

template <class T>
void put(void* params, const Parameter& parameter, T value) {
    std::memcpy(static_cast<char*>(params) + parameter.offset, &value, sizeof(value));
}

}  // namespace

void pack_scalar(const Signature& signature, const Parameter& parameter, const Scalar& value, void* params) {
    if (parameter.pointer) throw refuse_argument(ErrorKind::type, signature, parameter, "a number");
    const DType dtype = *parameter.dtype;
    if (value.kind() == ScalarKind::floating && !is_floating(dtype)) {
        throw refuse_argument(ErrorKind::type, signature, parameter, str("the float ", value.as_double()));
    }
    if (!value.fits(dtype)) {
        throw refuse_argument(
            ErrorKind::value, signature, parameter,
            value.is_unsigned() ? str(static_cast<std::uint64_t>(value.as_int64())) : str(value.as_int64()));
    }
    const auto number = static_cast<float>(value.as_double());
    switch (dtype) {
        case DType::bool_: return put(params, parameter, value.as_int64() != 0);
        case DType::int8:
        case DType::uint8: return put(params, parameter, static_cast<std::int8_t>(value.as_int64()));
        case DType::int16:
        case DType::uint16: return put(params, parameter, static_cast<std::int16_t>(value.as_int64()));
        case DType::int32:
        case DType::uint32: return put(params, parameter, static_cast<std::int32_t>(value.as_int64()));
        case DType::int64:
        case DType::uint64: return put(params, parameter, value.as_int64());
        case DType::float16: return put(params, parameter, float16(number));
        case DType::bfloat16: return put(params, parameter, bfloat16(number));
        case DType::float32: return put(params, parameter, number);
        case DType::float64: return put(params, parameter, value.as_double());
        case DType::float8_e4m3: return put(params, parameter, float8_e4m3(number));
        case DType::float8_e5m2: return put(params, parameter, float8_e5m2(number));
    }
}

void pack_pointer(const Signature& signature, const Parameter& parameter, std::uint64_t address, DType dtype,
                  void* params) {
    if (!parameter.pointer || (parameter.dtype && *parameter.dtype != dtype)) {
        throw refuse_argument(ErrorKind::type, signature, parameter, str("an array of ", name(dtype)));
    }
    put(params, parameter, address);
}

}  // namespace gpk::jit

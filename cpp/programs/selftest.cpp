// Checks a bundle: every file, then the golden cases. Exit codes are those of <attnport/error.hpp>, and 1 for a bug.
#include <algorithm>
#include <charconv>
#include <exception>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <attnport/bundle.hpp>

namespace {

constexpr const char* usage =
    "usage: attnport-selftest FOLDER [--key PUBLIC.pem] [--threads N] [--onnxruntime LIBRARY]\n";
constexpr const char* help =
    "\n"
    "Checks the bundle in FOLDER: compares every file and runs the golden cases.\n"
    "\n"
    "  --key PUBLIC.pem       public key (PEM, from outside) that the bundle must be signed with\n"
    "  --threads N            compute threads (default: the runtime's own choice)\n"
    "  --onnxruntime LIBRARY  ONNX Runtime's library (default: $ATTNPORT_ONNXRUNTIME, else libonnxruntime.so.1)\n"
    "  --help                 this text\n"
    "\n"
    "Exit codes: 0 fine, 2 no bundle or wrong use, 3 no runtime, 4 numbers are off, 6 a file differs.\n";

struct Asked {
    std::optional<std::string> folder;
    attnport::Options options;
    bool help = false;
};

/// Wrong use of the command line; the usage is shown with it.
class UsageError : public attnport::Error {
public:
    using Error::Error;
};

int threads(const std::string& text) {
    int found = 0;
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data(), end, found);
    if (error != std::errc() || at != end || found < 1) {
        throw UsageError("argument --threads: got '" + text + "'; expected a number of 1 or more");
    }
    return found;
}

Asked parse(const std::vector<std::string>& arguments) {
    Asked found;
    for (std::size_t index = 0; index < arguments.size(); ++index) {
        std::string name = arguments[index];
        if (name == "--help" || name == "-h") {
            found.help = true;
            return found;
        }
        if (name.size() < 2 || name[0] != '-') {
            if (found.folder) throw UsageError("unrecognized argument: " + name);
            found.folder = name;
            continue;
        }
        std::string value;
        if (const std::size_t equals = name.find('='); equals != std::string::npos) {
            value = name.substr(equals + 1);
            name.resize(equals);
        } else if (++index < arguments.size()) {
            value = arguments[index];
        }
        if (name != "--key" && name != "--threads" && name != "--onnxruntime") {
            throw UsageError("unrecognized argument: " + name);
        }
        if (value.empty()) throw UsageError("argument " + name + ": expected one argument");
        if (name == "--key") found.options.require_signature = value;
        if (name == "--threads") found.options.threads = threads(value);
        if (name == "--onnxruntime") found.options.onnxruntime = value;
    }
    if (!found.folder) throw UsageError("the following arguments are required: FOLDER");
    return found;
}

/// The number of characters of UTF-8 text: of bytes that do not go on with one.
std::size_t width(const std::string& text) {
    const auto starts = [](char letter) { return (static_cast<unsigned char>(letter) & 0xC0U) != 0x80U; };
    return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), starts));
}

void print(const attnport::Report& report) {
    std::size_t widest = 0;
    for (const attnport::Row& row : report.rows) widest = std::max(widest, width(row.check));
    for (const attnport::Row& row : report.rows) {
        const std::string after_check(widest - width(row.check) + 2, ' ');
        const std::string after_verdict(row.verdict.size() < 7 ? 9 - row.verdict.size() : 2, ' ');
        std::cout << row.check << after_check << row.verdict << after_verdict << row.detail << '\n';
    }
    if (report.unverified) {
        std::cout << "This bundle is UNVERIFIED: a form in it was not compared with its source when it was made.\n";
    }
    std::cout << (report.exit_code == 0 ? "OK" : "NOT OK (exit " + std::to_string(report.exit_code) + ")") << '\n';
}

int run(const std::vector<std::string>& arguments) {
    const Asked asked = parse(arguments);
    if (asked.help) {
        std::cout << usage << help;
        return 0;
    }
    const attnport::Report report = attnport::selftest(*asked.folder, asked.options);
    print(report);
    return report.exit_code;
}

}  // namespace

int main(int count, char** values) {
    try {
        return run({values + std::min(count, 1), values + count});
    } catch (const UsageError& err) {
        std::cerr << usage << "attnport-selftest: error: " << err.what() << '\n';
        return err.exit_code();
    } catch (const attnport::Error& err) {
        std::cerr << "error: " << err.what() << '\n';
        return err.exit_code();
    } catch (const std::exception& err) {
        std::cerr << "error: not expected, please report it: " << err.what() << '\n';
        return 1;
    } catch (...) {
        std::cerr << "error: not expected, please report it.\n";
        return 1;
    }
}

// What was moved from says so, and a lack of memory leaves a tokenizer as one of the library's own errors.
//
//     moved_from model APP           each call of a model that was moved from; a line for each answer
//     moved_from tokenizer FILE      as above, of a tokenizer
//     moved_from memory FILE         text is encoded with each allocation failing in turn; not while a file is read, since
//                                    nlohmann's destructor allocates, and ends the process where it cannot
#include <atomic>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <iostream>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <attnport/bundle.hpp>

namespace {

/// How many allocations are left before one fails; below zero: none does.
std::atomic<long> left{-1};

}  // namespace

// Not inline: g++ would warn of memory that another function gave than the one that takes it.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
    if (left.load() >= 0 && left.fetch_sub(1) == 0) throw std::bad_alloc();
    if (void* const found = std::malloc(bytes == 0 ? 1 : bytes)) return found;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }

namespace {

void say(const std::function<void()>& call) {
    try {
        call();
        std::cout << "nothing was thrown\n";
    } catch (const attnport::Error& err) {
        std::cout << err.exit_code() << ' ' << err.what() << '\n';
    }
}

void use(const std::string& app) {
    attnport::Model first(app);
    const attnport::Model second(std::move(first));
    const attnport::Model& gone = first;  // NOLINT(bugprone-use-after-move): what this program is about
    say([&] { static_cast<void>(gone.run({})); });
    say([&] { static_cast<void>(gone.run_device({})); });
    say([&] { static_cast<void>(gone.masks({1})); });
    say([&] { static_cast<void>(gone.file_dtype("ids")); });
    say([&] { static_cast<void>(gone.name()); });
    say([&] { static_cast<void>(gone.io()); });
    say([&] { static_cast<void>(gone.form()); });
    say([&] { static_cast<void>(gone.provider()); });
    say([&] { static_cast<void>(gone.version()); });
    say([&] { static_cast<void>(gone.device()); });
    say([&] { static_cast<void>(gone.passed_over()); });
    first = attnport::Model(app);
    std::cout << first.form() << ' ' << second.form() << '\n';
}

attnport::IO contract() {
    attnport::IO io;
    io.dims = {{"batch", 1, 2, 8}, {"seq", 1, 4, 12}};
    io.inputs = {{"input_ids", attnport::DType::Int64, {"batch", "seq"}, std::nullopt}};
    return io;
}

std::filesystem::path chars_of(std::filesystem::path file) { return file.replace_extension(".chars"); }

void tokenize(const std::string& path) {
    attnport::Tokenizer first(path, chars_of(path), contract());
    const attnport::Tokenizer second(std::move(first));
    say([&] { static_cast<void>(first.encode({"the"})); });  // NOLINT(bugprone-use-after-move)
    std::cout << second.encode({"the"}).size() << '\n';
}

/// Does something with the first allocation failing, the second, and so on, until it is through. How often it failed.
long until_it_works(const std::function<void()>& act) {
    for (long number = 0;; ++number) {
        left = number;
        bool failed = false;
        try {
            act();
        } catch (const attnport::Error& err) {
            failed = true;
            if (err.exit_code() != 2) throw;
        }
        if (left.exchange(-1) >= 0) return number;  // there were fewer allocations
        if (!failed) std::cout << "allocation " << number << " failed, and nothing was thrown\n";
    }
}

void starve(const std::filesystem::path& path) {  // not text: the caller would make a path of it
    const attnport::IO io = contract();
    const attnport::Tokenizer tokenizer(path, chars_of(path), io);
    const std::vector<std::string> texts{"the [SEP] the"};
    const long encoded = until_it_works([&] { static_cast<void>(tokenizer.encode(texts)); });
    std::cout << (encoded > 5 ? "told" : "hardly anything was allocated") << '\n';
}

}  // namespace

int main(int count, char** words) {
    if (count != 3) return 64;
    try {
        const std::string what = words[1];
        if (what == "model") use(words[2]);
        if (what == "tokenizer") tokenize(words[2]);
        if (what == "memory") starve(words[2]);
        return 0;
    } catch (const std::exception& err) {
        left = -1;
        std::cerr << "not expected: " << err.what() << '\n';
        return 1;
    }
}

// Opens a bundle in two threads at once, each with a plug-in of its own, and says what each runs on.
//
//     plugins_at_once APP CACHE ONNXRUNTIME PROVIDER
#include <array>
#include <functional>
#include <iostream>
#include <string>
#include <thread>

#include <attnport/bundle.hpp>

int main(int count, char** words) {
    if (count != 5) return 64;
    attnport::Options options;
    options.threads = 1;
    options.cache = words[2];
    options.onnxruntime = words[3];
    options.providers = {words[4]};
    const auto open = [&](const std::string& plugin, std::string& said) {
        attnport::Options own = options;
        own.plugins = {{plugin, plugin + ".so"}};
        try {
            said = attnport::Model(words[1], own).provider();
        } catch (const attnport::Error& err) {
            said = err.what();
        }
    };
    std::array<std::string, 2> said;
    std::thread one(open, "one", std::ref(said[0]));
    std::thread two(open, "two", std::ref(said[1]));
    one.join();
    two.join();
    std::cout << said[0] << '\n' << said[1] << '\n';
    return 0;
}

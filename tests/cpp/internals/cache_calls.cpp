// cache_calls: what stands in a user's cache, call by call, each on a line of the answer.
//
//   find BUNDLE [ASKED]       whether there is a cache; its warning, or its error
//   write|read FOLDER NAME [DATA]
//   blob FOLDER ENTRY [DATA]  what RuntimeCache keeps; with DATA: kept first
//   entry FORM PROVIDER VERSION DEVICE DRIVER DIGEST
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <attnport/error.hpp>

#include "runtimes/cache.hpp"

namespace {

using attnport::reader::CacheFolder;

void put(const std::string& line) { std::puts(line.c_str()); }

void find(const std::vector<std::string>& given) {
    const auto warn = [](const std::string& words) { put("warning: " + words); };
    const auto found = attnport::reader::find_cache(given.at(1), given.size() > 2 ? given[2] : "", warn);
    put(found ? "found" : "none");
}

void entry(const std::vector<std::string>& given) {
    attnport::reader::Manifest manifest;
    manifest.digest = given.at(6);
    manifest.forms[given.at(1)];
    const attnport::reader::Machine machine{given.at(4), "", 0, given.at(5)};
    put(attnport::reader::entry(manifest, given[1], given.at(2), given.at(3), machine));
}

void call(const std::vector<std::string>& given) {
    if (given.at(0) == "find") {
        find(given);
    } else if (given[0] == "write") {
        put(CacheFolder(given.at(1)).write(given.at(2), given.at(3)) ? "written" : "not written");
    } else if (given[0] == "read") {
        put(CacheFolder(given.at(1)).read(given.at(2)).value_or("none"));
    } else if (given[0] == "blob") {
        attnport::reader::RuntimeCache cache(CacheFolder(given.at(1)), given.at(2));
        if (given.size() > 3) cache.write(given[3]);
        put(cache.read().value_or("none"));
    } else {
        entry(given);
    }
}

}  // namespace

int main(int count, char** values) {
    try {
        call({values + 1, values + count});
        return 0;
    } catch (const attnport::Error& err) {
        put(std::string("error: ") + err.what());
        return err.exit_code();
    } catch (const std::exception& err) {
        std::fprintf(stderr, "not expected: %s\n", err.what());
        return 1;
    }
}

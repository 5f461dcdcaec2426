// Opens the bundle in a folder, and with a key only what is signed with it; either may be empty.
//
//     open_at FOLDER [KEY]
#include <iostream>

#include <attnport/bundle.hpp>

int main(int count, char** words) {
    if (count != 2 && count != 3) return 64;
    attnport::Options options;
    if (count == 3) options.require_signature = words[2];
    try {
        std::cout << attnport::Model(words[1], options).form() << '\n';
        return 0;
    } catch (const attnport::Error& err) {
        std::cout << err.what() << '\n';
        return err.exit_code();
    }
}

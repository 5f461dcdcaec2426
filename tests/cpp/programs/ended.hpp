// How a test's program ends.
#pragma once

#include <exception>
#include <iostream>

#include <attnport/error.hpp>

/// What `body` returns; or the exit code of the reader's error that it throws, which goes to stderr, and 1 for another.
template <class Body> int ended(const Body& body) {
    try {
        return body();
    } catch (const attnport::Error& err) {
        std::cerr << err.what() << '\n';
        return err.exit_code();
    } catch (const std::exception& err) {
        std::cerr << "wrong use: " << err.what() << '\n';
        return 1;
    }
}

// What can go wrong with a bundle; each class owns the exit code of the command line.
#pragma once

#include <stdexcept>
#include <string>

#include <attnport/api.hpp>

namespace attnport {

/// Not a bundle, of a version that this reader does not know, or used in a way that it does not offer.
class ATTNPORT_API Error : public std::runtime_error {
public:
    explicit Error(const std::string& message) : std::runtime_error(message) {}
    Error(const Error&) = default;
    Error& operator=(const Error&) = default;
    ~Error() override;

    /// The exit code that a program ends with: that of each class below; 2 here, also where there is too little memory.
    [[nodiscard]] virtual int exit_code() const noexcept { return 2; }
};

/// Inputs do not fit the model: the message names the tensor, what was got and what is expected.
class ATTNPORT_API FeedError : public Error {
public:
    using Error::Error;
    FeedError(const FeedError&) = default;
    FeedError& operator=(const FeedError&) = default;
    ~FeedError() override;
};

/// The runtime is not there, is older than the bundle needs, or was not compiled into this library. Exit code 3.
class ATTNPORT_API RuntimeMissing : public Error {
public:
    using Error::Error;
    RuntimeMissing(const RuntimeMissing&) = default;
    RuntimeMissing& operator=(const RuntimeMissing&) = default;
    ~RuntimeMissing() override;
    [[nodiscard]] int exit_code() const noexcept override { return 3; }
};

/// The model computes something else here than where the bundle was made. Exit code 4.
class ATTNPORT_API NumbersOff : public Error {
public:
    using Error::Error;
    NumbersOff(const NumbersOff&) = default;
    NumbersOff& operator=(const NumbersOff&) = default;
    ~NumbersOff() override;
    [[nodiscard]] int exit_code() const noexcept override { return 4; }
};

/// Something went wrong in the library that it did not expect: a bug. Exit code 1.
class ATTNPORT_API NotExpected : public Error {
public:
    using Error::Error;
    NotExpected(const NotExpected&) = default;
    NotExpected& operator=(const NotExpected&) = default;
    ~NotExpected() override;
    [[nodiscard]] int exit_code() const noexcept override { return 1; }
};

/// A file is not the one that was bundled, or the manifest cannot be trusted. Exit code 6.
class ATTNPORT_API IntegrityError : public Error {
public:
    using Error::Error;
    IntegrityError(const IntegrityError&) = default;
    IntegrityError& operator=(const IntegrityError&) = default;
    ~IntegrityError() override;
    [[nodiscard]] int exit_code() const noexcept override { return 6; }
};

}  // namespace attnport

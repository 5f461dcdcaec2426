// Checks a bundle in an application that takes its user's locale, as one with windows does: the decimal point before,
// a line for each row of the selftest, and the decimal point behind.
//
//     localised APP
#include <clocale>
#include <iostream>

#include <attnport/bundle.hpp>

int main(int count, char** words) {
    if (count != 2 || std::setlocale(LC_ALL, "") == nullptr) return 64;
    try {
        std::cout << std::localeconv()->decimal_point << '\n';
        const attnport::Report report = attnport::selftest(words[1]);
        for (const attnport::Row& row : report.rows) {
            std::cout << row.check << ' ' << row.verdict << ' ' << row.detail << '\n';
        }
        std::cout << std::localeconv()->decimal_point << '\n';
        return report.exit_code;
    } catch (const attnport::Error& err) {
        std::cout << err.what() << '\n';
        return err.exit_code();
    }
}

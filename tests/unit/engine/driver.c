/* Draws inputs for a fuzz target where clang's libFuzzer is missing: `driver INPUTS SEED [SECONDS]`.
 *
 * Each input depends on its number alone. The number is printed before a crash, and `driver 1 NUMBER` repeats it. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_LENGTH = 4096 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* AddressSanitizer calls this before it ends the process. */
void __asan_on_error(void);

static uint64_t current;

void __asan_on_error(void)
{
    fprintf(stderr, "input %llu\n", (unsigned long long)current);
}

static void on_abort(int signal)
{
    (void)signal;
    __asan_on_error();
}

/* splitmix64 (G. Steele, D. Lea, C. Flood: Fast splittable pseudorandom number generators, 2014) */
static uint64_t next(uint64_t *state)
{
    uint64_t value = *state += UINT64_C(0x9E3779B97F4A7C15);

    value = (value ^ value >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    value = (value ^ value >> 27) * UINT64_C(0x94D049BB133111EB);
    return value ^ value >> 31;
}

int main(int argc, char **argv)
{
    static uint8_t data[MAX_LENGTH];
    uint64_t inputs = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000;
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    time_t end = argc > 3 ? time(NULL) + atol(argv[3]) : 0;
    uint64_t number = 0;

    signal(SIGABRT, on_abort);
    for (; number < inputs && (end == 0 || time(NULL) < end); number++) {
        uint64_t random = current = first + number;
        size_t length = next(&random) % (MAX_LENGTH + 1);

        for (size_t at = 0; at < length; at += 8) {
            uint64_t drawn = next(&random);

            memcpy(data + at, &drawn, length - at < 8 ? length - at : 8);
        }
        LLVMFuzzerTestOneInput(data, length);
    }
    printf("%llu inputs from %llu on\n", (unsigned long long)number, (unsigned long long)first);
    return 0;
}

/* A stand-in for libnvidia-ml.so.1: the functions that kit/gpu.py calls, over a text file of "key=value" lines.
 *
 * The file is named by NVML_STANDIN. Tests write it and read it from outside, also after every process was killed:
 * `N.lock=MHz` is what a driver keeps across processes. Keys of card N:
 *   name uuid total used power_mw energy_mj sm_clock drift temperature util reasons processes (a,b,c) lock locks resets
 *   permission=0   locking answers "no permission"        lockable=0   locking answers "not supported"
 *   stuck=1        resetting answers "no permission"      memory=0     memory, power limit, clocks lists: not supported
 *   fail=CODE      every question about the card answers CODE (15 lost, 999 unknown)
 * and of the machine: count, driver, init (what nvmlInit answers).
 * With -DOLD_DRIVER the library has no nvmlDeviceGetCurrentClocksEventReasons, as drivers before 535 have not.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { SIZE = 65536, CARDS = 16 };
typedef struct { int index; } *Card;
static struct { int index; } cards[CARDS];

static void load(char *text) {
    const char *path = getenv("NVML_STANDIN");
    int file = path ? open(path, O_RDONLY) : -1;
    ssize_t size = file < 0 ? 0 : read(file, text, SIZE - 1);
    if (file >= 0) close(file);
    text[size < 0 ? 0 : size] = 0;
}

static int find(const char *text, const char *key, char *value, size_t room) {
    size_t length = strlen(key);
    for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (!strncmp(line, key, length) && line[length] == '=') {
            snprintf(value, room, "%.*s", (int)strcspn(line + length + 1, "\n"), line + length + 1);
            return 1;
        }
    return 0;
}

static int get_text(int index, const char *field, char *value, size_t room) {
    char text[SIZE], key[64];
    load(text);
    if (index < 0) snprintf(key, sizeof key, "%s", field);
    else snprintf(key, sizeof key, "%d.%s", index, field);
    return find(text, key, value, room);
}

static long long get(int index, const char *field, long long otherwise) {
    char value[256];
    return get_text(index, field, value, sizeof value) ? atoll(value) : otherwise;
}

/* Replaces one key; the file is swapped whole, so that a reader never sees half of it. */
static void set(int index, const char *field, long long value) {
    char text[SIZE], key[64], scratch[4096], guard[4096];
    const char *path = getenv("NVML_STANDIN");
    snprintf(guard, sizeof guard, "%s.guard", path);
    int lock = open(guard, O_CREAT | O_RDWR, 0600);
    flock(lock, LOCK_EX);
    load(text);
    snprintf(key, sizeof key, "%d.%s=", index, field);
    snprintf(scratch, sizeof scratch, "%s.%d", path, (int)getpid());
    FILE *out = fopen(scratch, "w");
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (strncmp(line, key, strlen(key))) fprintf(out, "%s\n", line);
    fprintf(out, "%s%lld\n", key, value);
    fclose(out);
    rename(scratch, path);
    close(lock);
}

static int trouble(Card card) { return (int)get(card->index, "fail", 0); }

int nvmlInitWithFlags(unsigned flags) { (void)flags; return (int)get(-1, "init", 0); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "stand-in error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)get(-1, "count", 1); return OK; }
int nvmlSystemGetCudaDriverVersion(int *version) { *version = (int)get(-1, "cuda", 12040); return OK; }

int nvmlSystemGetDriverVersion(char *value, unsigned room) {
    if (!get_text(-1, "driver", value, room)) snprintf(value, room, "550.54.15");
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Card *card) {
    if (index >= CARDS || index >= get(-1, "count", 1)) return INVALID;
    cards[index].index = (int)index;
    *card = (Card)&cards[index];
    return OK;
}

int nvmlDeviceGetUUID(Card card, char *value, unsigned room) {
    if (!get_text(card->index, "uuid", value, room)) snprintf(value, room, "GPU-standin-%d", card->index);
    return trouble(card);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Card *card) {
    char own[96];
    for (unsigned index = 0; nvmlDeviceGetHandleByIndex_v2(index, card) == OK; index++) {
        if (!get_text((int)index, "uuid", own, sizeof own)) snprintf(own, sizeof own, "GPU-standin-%u", index);
        if (!strcmp(uuid, own)) return OK;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetName(Card card, char *value, unsigned room) {
    if (!get_text(card->index, "name", value, room)) snprintf(value, room, "NVIDIA L4");
    return trouble(card);
}

int nvmlDeviceGetMemoryInfo(Card card, unsigned long long memory[3]) {
    if (!get(card->index, "memory", 1)) return NOT_SUPPORTED;
    memory[0] = (unsigned long long)get(card->index, "total", 24152899584LL);
    memory[2] = (unsigned long long)get(card->index, "used", 1048576);
    memory[1] = memory[0] - memory[2];
    return trouble(card);
}

/* 210 to 2040 MHz in steps of 15, highest first, as an L4 lists them. */
static int list_clocks(Card card, unsigned first, unsigned last, unsigned step, unsigned *count, unsigned *clocks) {
    if (!get(card->index, "memory", 1)) return NOT_SUPPORTED;
    if (trouble(card)) return trouble(card);
    unsigned size = (first - last) / step + 1;
    int fits = clocks && *count >= size;
    for (unsigned i = 0; fits && i < size; i++) clocks[i] = first - i * step;
    *count = size;
    return fits ? OK : INSUFFICIENT_SIZE;
}

int nvmlDeviceGetSupportedMemoryClocks(Card card, unsigned *count, unsigned *clocks) {
    return list_clocks(card, 6251, 405, 5846, count, clocks);
}

int nvmlDeviceGetSupportedGraphicsClocks(Card card, unsigned memory, unsigned *count, unsigned *clocks) {
    if (memory != 6251) return list_clocks(card, 645, 210, 15, count, clocks);
    return list_clocks(card, (unsigned)get(card->index, "clock_top", 2040), 210, 15, count, clocks);
}

int nvmlDeviceGetMaxClockInfo(Card card, unsigned type, unsigned *mhz) {
    *mhz = type == 2 ? 6251 : 2040;
    return trouble(card);
}

int nvmlDeviceGetClockInfo(Card card, unsigned type, unsigned *mhz) {
    long long lock = get(card->index, "lock", 0), free = get(card->index, "sm_clock", 1995);
    *mhz = type == 2 ? 6251 : (unsigned)((lock ? lock : free) + get(card->index, "drift", 0));
    return trouble(card);
}

static int reasons_of(Card card, unsigned long long *reasons) {
    *reasons = (unsigned long long)get(card->index, "reasons", 0);
    return trouble(card);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Card card, unsigned long long *r) { return reasons_of(card, r); }
#ifndef OLD_DRIVER
int nvmlDeviceGetCurrentClocksEventReasons(Card card, unsigned long long *r) { return reasons_of(card, r); }
#endif

int nvmlDeviceGetPowerUsage(Card card, unsigned *milliwatts) {
    *milliwatts = (unsigned)get(card->index, "power_mw", 72000);
    return trouble(card);
}

int nvmlDeviceGetEnforcedPowerLimit(Card card, unsigned *milliwatts) {
    if (!get(card->index, "memory", 1)) return NOT_SUPPORTED;
    *milliwatts = (unsigned)get(card->index, "limit_mw", 72000);
    return trouble(card);
}

/* Counts up with the machine's clock at the power of the card, unless the test gives a number. */
int nvmlDeviceGetTotalEnergyConsumption(Card card, uint64_t *millijoules) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double grown = (double)get(card->index, "power_mw", 72000) * ((double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    *millijoules = (uint64_t)get(card->index, "energy_mj", (long long)grown);
    return trouble(card);
}

int nvmlDeviceGetTemperature(Card card, unsigned sensor, unsigned *celsius) {
    (void)sensor;
    *celsius = (unsigned)get(card->index, "temperature", 61);
    return trouble(card);
}

int nvmlDeviceGetUtilizationRates(Card card, unsigned rates[2]) {
    rates[0] = rates[1] = (unsigned)get(card->index, "util", 97);
    return trouble(card);
}

static int flag(Card card, const char *field, unsigned *now, unsigned *later) {
    long long value = get(card->index, field, -1);
    if (value < 0) return NOT_SUPPORTED;
    *now = (unsigned)value;
    if (later) *later = (unsigned)value;
    return trouble(card);
}

int nvmlDeviceGetEccMode(Card card, unsigned *now, unsigned *later) { return flag(card, "ecc", now, later); }
int nvmlDeviceGetMigMode(Card card, unsigned *now, unsigned *later) { return flag(card, "mig", now, later); }
int nvmlDeviceGetPersistenceMode(Card card, unsigned *now) { return flag(card, "persistence", now, NULL); }
int nvmlDeviceGetCurrPcieLinkGeneration(Card card, unsigned *value) { return flag(card, "pcie", value, NULL); }
int nvmlDeviceGetCurrPcieLinkWidth(Card card, unsigned *value) { return flag(card, "lanes", value, NULL); }

int nvmlDeviceGetCudaComputeCapability(Card card, int *major, int *minor) {
    *major = 8, *minor = 9;
    return trouble(card);
}

typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute; } Process;

int nvmlDeviceGetComputeRunningProcesses_v3(Card card, unsigned *count, Process *processes) {
    char list[256];
    unsigned size = 0;
    if (trouble(card)) return trouble(card);
    if (!get_text(card->index, "processes", list, sizeof list) || !*list) { *count = 0; return OK; }
    for (char *pid = strtok(list, ","); pid; pid = strtok(NULL, ","), size++)
        if (processes && size < *count) processes[size] = (Process){.pid = (unsigned)atoi(pid), .used = 1048576};
    int fits = processes && *count >= size;
    *count = size;
    return fits ? OK : INSUFFICIENT_SIZE;
}

int nvmlDeviceSetGpuLockedClocks(Card card, unsigned low, unsigned high) {
    if (trouble(card)) return trouble(card);
    if (!get(card->index, "lockable", 1)) return NOT_SUPPORTED;
    if (!get(card->index, "permission", 1)) return NO_PERMISSION;
    if (low != high) return INVALID;
    set(card->index, "lock", high);
    set(card->index, "locks", get(card->index, "locks", 0) + 1);
    return OK;
}

int nvmlDeviceResetGpuLockedClocks(Card card) {
    if (trouble(card)) return trouble(card);
    if (get(card->index, "stuck", 0)) return NO_PERMISSION;
    set(card->index, "lock", 0);
    set(card->index, "resets", get(card->index, "resets", 0) + 1);
    return OK;
}

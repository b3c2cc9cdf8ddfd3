// Who uses how much of each device, across processes: what NVML knows on a real machine.
//
// With FAKECUDA_STATE=FILE every process writes its own use into its slot of that file, which
// all of them map shared. Then a device's byte limit holds for all of them together,
// cudaMemGetInfo counts the others, and nvml.c can list them. Without it a process knows only
// of itself. Slots of dead processes are ignored and taken over.
//
// Two processes that allocate at the very same moment can overshoot the common limit: nothing
// is locked between processes. Process ids are compared as they are, so one pid namespace only.
#define _GNU_SOURCE
#include "fake.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define SLOTS 256

struct slot {
    _Atomic int pid;
    _Atomic uint64_t bytes[FAKE_MAX_DEVICES]; // by index on the machine
};

static struct slot private_slots[1];
static struct slot *slots = private_slots;
static int slot_count = 1;
static pthread_once_t slots_once = PTHREAD_ONCE_INIT;

static struct slot *mine;
static int mine_pid; // a forked child has another pid and takes a slot of its own

static void open_slots(void) {
    const char *path = getenv("FAKECUDA_STATE");
    if (!path || !*path)
        return;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0)
        return;
    size_t length = SLOTS * sizeof(struct slot);
    if (ftruncate(file, (off_t)length) == 0) {
        void *mapped = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (mapped != MAP_FAILED) {
            slots = mapped;
            slot_count = SLOTS;
        }
    }
    close(file);
}

static bool is_alive(int pid) { return kill(pid, 0) == 0 || errno != ESRCH; }

static struct slot *my_slot(void) {
    pthread_once(&slots_once, open_slots);
    int pid = getpid();
    if (mine && mine_pid == pid)
        return mine;
    for (int i = 0; i < slot_count; i++) {
        int owner = atomic_load(&slots[i].pid);
        bool is_free = slots == private_slots || owner == 0 || owner == pid || !is_alive(owner);
        if (is_free && atomic_compare_exchange_strong(&slots[i].pid, &owner, pid)) {
            for (int device = 0; device < FAKE_MAX_DEVICES; device++)
                atomic_store(&slots[i].bytes[device], 0);
            mine_pid = pid;
            return mine = &slots[i];
        }
    }
    return NULL;
}

void fake_usage_publish(int physical, uint64_t bytes) {
    struct slot *slot = my_slot();
    if (slot)
        atomic_store(&slot->bytes[physical], bytes);
}

uint64_t fake_usage_of_others(int physical) {
    pthread_once(&slots_once, open_slots);
    if (slots == private_slots)
        return 0;
    uint64_t sum = 0;
    for (int i = 0; i < slot_count; i++) {
        int pid = atomic_load(&slots[i].pid);
        uint64_t bytes = pid ? atomic_load(&slots[i].bytes[physical]) : 0;
        if (bytes && pid != getpid() && is_alive(pid))
            sum += bytes;
    }
    return sum;
}

int fake_usage_processes(int physical, int *pids, uint64_t *bytes, int capacity) {
    pthread_once(&slots_once, open_slots);
    int count = 0;
    for (int i = 0; i < slot_count; i++) {
        int pid = atomic_load(&slots[i].pid);
        uint64_t used = pid ? atomic_load(&slots[i].bytes[physical]) : 0;
        if (!used || !is_alive(pid))
            continue;
        if (count < capacity) {
            pids[count] = pid;
            bytes[count] = used;
        }
        count++;
    }
    return count;
}

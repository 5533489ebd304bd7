/* What amd_machine.Amdsmi answers, in the place of AMD's library in C: amdsmi.h of ROCm 7.0. */

#include <stdint.h>
#include <string.h>

#define SUCCESS 0
#define NOT_SUPPORTED 2
#define NO_PERM 10

/* A handle is the driver's number for the GPU. The driver's second one says nothing that it need not. */
typedef uintptr_t gpu_t;
#define SILENT 51003

static const gpu_t by_bus[] = {51004, SILENT, 51006, 51002, 51005};
#define COUNT (sizeof by_bus / sizeof *by_bus)

int amdsmi_init(uint64_t flags)
{
	(void)flags;
	return SUCCESS;
}

int amdsmi_shut_down(void)
{
	return SUCCESS;
}

int amdsmi_get_socket_handles(uint32_t *count, uintptr_t *sockets)
{
	*count = 1;
	if (sockets)
		*sockets = 1;
	return SUCCESS;
}

int amdsmi_get_processor_handles(uintptr_t socket, uint32_t *count, gpu_t *gpus)
{
	(void)socket;
	*count = COUNT;
	if (gpus)
		memcpy(gpus, by_bus, sizeof by_bus);
	return SUCCESS;
}

struct kfd_info { uint64_t kfd_id; uint32_t node_id, current_partition_id, reserved[12]; };

int amdsmi_get_gpu_kfd_info(gpu_t gpu, struct kfd_info *info)
{
	*info = (struct kfd_info){.kfd_id = gpu, .node_id = gpu - 51000};
	return SUCCESS;
}

struct asic_info {
	char market_name[256];
	uint32_t vendor_id;
	char vendor_name[256];
	uint32_t subvendor_id;
	uint64_t device_id;
	uint32_t rev_id;
	char asic_serial[256];
	uint32_t oam_id, compute_units;
	uint64_t target_graphics_version;
	uint32_t subsystem_id, reserved[21];
};

int amdsmi_get_gpu_asic_info(gpu_t gpu, struct asic_info *info)
{
	*info = (struct asic_info){.target_graphics_version = 0x942};
	if (gpu != SILENT)
		strcpy(info->market_name, "AMD Instinct MI300X");
	return SUCCESS;
}

struct engine_usage { uint32_t gfx_activity, umc_activity, mm_activity, reserved[13]; };

int amdsmi_get_gpu_activity(gpu_t gpu, struct engine_usage *usage)
{
	*usage = (struct engine_usage){gpu == SILENT ? 0xFFFF : gpu - 51000, 1, 0xFFFF};
	return SUCCESS;
}

static int memory(gpu_t gpu, uint64_t gib, uint64_t *bytes)
{
	*bytes = gib << 30;
	return gpu == SILENT ? NOT_SUPPORTED : SUCCESS;
}

int amdsmi_get_gpu_memory_total(gpu_t gpu, int kind, uint64_t *bytes)
{
	(void)kind;
	return memory(gpu, 192, bytes);
}

int amdsmi_get_gpu_memory_usage(gpu_t gpu, int kind, uint64_t *bytes)
{
	(void)kind;
	return memory(gpu, gpu - 51000, bytes);
}

int amdsmi_get_gpu_process_list(gpu_t gpu, uint32_t *count, void *list)
{
	(void)list;
	*count = gpu == 51004;
	return gpu == SILENT ? NO_PERM : SUCCESS;
}

int amdsmi_get_gpu_compute_partition(gpu_t gpu, char *mode, uint32_t length)
{
	strncpy(mode, "SPX", length);
	return gpu == SILENT ? NOT_SUPPORTED : SUCCESS;
}

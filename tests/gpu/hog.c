/* Takes the memory of a device away until it is killed. usage: hog BYTES_LEFT   Prints "ready" once
 * it has all but BYTES_LEFT. */
#include <cuda_runtime_api.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    size_t free_bytes = 0, all = 0;
    void *memory = NULL;
    if (count != 2 || cudaMemGetInfo(&free_bytes, &all) != cudaSuccess)
        return 2;
    size_t left = strtoull(arguments[1], NULL, 10);
    if (free_bytes > left && cudaMalloc(&memory, free_bytes - left) != cudaSuccess)
        return 1;
    printf("ready\n");
    fflush(stdout);
    for (;;)
        pause();
}

"""Child processes of this machine, of any program.

No process outlives the one that started it.

    process  one child process, watched through its pidfd and reaped at its end
    child    starts a program that cannot outlive its parent
    procfs   facts of the kernel about a process
"""

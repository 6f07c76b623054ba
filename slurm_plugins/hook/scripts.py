"""The two scripts a site installs: text in, files for slurm.conf's directory out.

Called by ``bftrainer hook`` and the test cluster. Both run where nothing may wait: the
first inside slurmctld with its locks held, the second in a child of it. So each appends
one line to a regular file, never to a pipe, and only if a daemon has made the file and
has not left it to grow. Source: slurm.conf(5) and the job_submit/lua page, release 22.05.
"""

from __future__ import annotations

from pathlib import Path

MAX_BYTES = 1 << 20  # nobody reads any more: write nothing
LUA_NAME = "job_submit.lua"  # Slurm's own name for it
EPILOG_NAME = "bftrainer_epilog.sh"

_LUA = """\
-- Tells bftrainer of every submitted job: one line in a file, if a daemon wants it.
-- Job ids do not exist yet at this point. Nothing here can refuse or change a job.
local FILE = "{file}"
local MAX_BYTES = {max_bytes}
local NO_VALUE = {{[4294967294] = true, [4294967295] = true, [65534] = true, [65535] = true}}

local function number(value)
    if value == nil or NO_VALUE[value] then return "" end
    return string.format("%d", value)
end

local function text(value)
    if value == nil then return "" end
    return (string.gsub(tostring(value), "[%c\\127]", " "))
end

local function write(fields)
    local reader = io.open(FILE, "r")
    if reader == nil then return end
    local size = reader:seek("end")
    reader:close()
    if size == nil or size > MAX_BYTES then return end
    local writer = io.open(FILE, "a")
    if writer == nil then return end
    writer:write(table.concat(fields, "\\t") .. "\\n")
    writer:close()
end

-- Whose job it will be, not who submits it: administrators and gateways do so for others.
local function owner(job, uid)
    local found = job.user_id
    -- 65534 is nobody, not a number that was left out.
    if found == nil or found >= 4294967294 then found = uid end
    return string.format("%d", found)
end

local function submitted(job, uid)
    write({{
        "submit", string.format("%.0f", os.time()), owner(job, uid), text(job.partition),
        number(job.min_nodes), number(job.num_tasks), number(job.cpus_per_task),
        number(job.min_cpus), number(job.time_limit), text(job.features),
        text(job.req_nodes), text(job.tres_per_node), number(job.immediate),
        number(job.begin_time), text(job.dependency), number(job.priority),
        job.script == nil and "interactive" or "batch",
    }})
end

local function modified(record)
    write({{
        "modify", string.format("%.0f", os.time()), number(record.job_id),
        text(record.partition), "",
    }})
end

function slurm_job_submit(job, partitions, uid)
    pcall(submitted, job, uid)
    return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
    pcall(modified, record)
    return slurm.SUCCESS
end

return slurm.SUCCESS
"""

_EPILOG = """\
#!/bin/sh
# Tells bftrainer of every job that has ended: one line in a file, if a daemon wants it.
file='{file}'
[ -f "$file" ] || exit 0
[ "$(wc -c < "$file")" -le {max_bytes} ] || exit 0
printf 'end\\t%s\\t%s\\t%s\\t%s\\n' "$(date +%s)" "$SLURM_JOB_ID" "$SLURM_JOB_PARTITION" \\
    "$SLURM_JOB_NODELIST" >> "$file"
exit 0
"""


def lua(file: Path) -> str:
    """Return ``job_submit.lua``; ``file``: what it appends to."""
    return _LUA.format(file=_quotable(file), max_bytes=MAX_BYTES)


def epilog(file: Path) -> str:
    """Return the script for ``EpilogSlurmctld``."""
    return _EPILOG.format(file=_quotable(file), max_bytes=MAX_BYTES)


def settings(directory: Path) -> dict[str, str]:
    """Return the lines of slurm.conf that use the scripts in its directory."""
    return {"JobSubmitPlugins": "lua", "EpilogSlurmctld": str(directory / EPILOG_NAME)}


def install(directory: Path, file: Path) -> tuple[Path, Path]:
    """Write both scripts into a directory; returns where they are.

    Raises:
        OSError: the directory cannot be written.
    """
    script, ending = directory / LUA_NAME, directory / EPILOG_NAME
    script.write_text(lua(file))
    script.chmod(0o644)
    ending.write_text(epilog(file))
    ending.chmod(0o755)
    return script, ending


def _quotable(file: Path) -> str:
    name = str(file)
    if not file.is_absolute() or any(c in name for c in "'\"\\\n") or not name.isprintable():
        raise ValueError(f"{name!r} cannot stand in a script: use a plain absolute path")
    return name

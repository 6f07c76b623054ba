"""The scripts and units that a site installs on a controller's host.

Called by ``bftrainer-slurm-hook`` and the test cluster. Both run where nothing may block: the first
inside slurmctld with its locks held, the second in a child of it. So each appends one line to a
regular file, never to a pipe, and begins a new file when it is full, whether or not it is read.
Sources: slurm.conf(5) and the job_submit/lua page, release 22.05; for the units systemd.exec(5) and
systemd.service(5), release 252.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bftrainer.batch.service_files import CONFINED, UNPRIVILEGED
from bftrainer.model.site import SiteFile

LUA_NAME = "job_submit.lua"  # fixed by Slurm
EPILOG_NAME = "bftrainer_epilog.sh"
OLD = ".old"  # suffix of a full file when a new one replaces it
FIRST_LINE = "bftrainer-hook 1"  # marks the file as ours
MAX_BYTES = 1 << 20  # then the writers begin a new file
MAX_LINE_BYTES = 2000  # written at once, so that writers do not mix their lines
N_FEW = 16  # fields of a submitted job that earlier releases wrote; enough to know its size
N_ALL = 34  # with the rest of its request

_LUA = """\
-- Notifies bftrainer of every submitted job: one line in a file.
-- Job ids do not exist yet at this point. Nothing here can refuse or change a job.
local FILE, OLD = "{file}", "{file}{old}"
local FIRST_LINE = "{first_line}\\n"
local MAX_BYTES, MAX_LINE_BYTES = {max_bytes}, {max_line_bytes}
local N_FEW = {n_few}  -- the fields of a submitted job in a line that would else be too long
local NO_VALUE = {{[4294967294] = true, [4294967295] = true, [65534] = true, [65535] = true}}

-- "": there is none, or it is no number of 64 bits.
local function amount(value)
    value = tonumber(value)
    if value == nil or not (math.abs(value) < 2^63) then return "" end
    return string.format("%.0f", value)
end

-- Numbers without a value have the largest one, or the next, of 16 or 32 bits.
local function number(value)
    if value == nil or NO_VALUE[value] then return "" end
    return amount(value)
end

local function text(value)
    if value == nil then return "" end
    return (string.gsub(tostring(value), "[%c\\127]", " "))
end

-- Only SlurmUser and root can create anything there. If it is not our file all the same:
-- "a+" does not block at a pipe, which has no end, and does not truncate a file.
local function opened()
    local file = io.open(FILE, "a+")
    if file == nil then return nil, 0 end
    local size = file:seek("end")
    if size == 0 then
        file:write(FIRST_LINE)
        return file, 0
    end
    if size ~= nil and file:seek("set") and file:read(#FIRST_LINE) == FIRST_LINE then
        file:seek("end")
        return file, size
    end
    file:close()
    return nil, 0
end

local function write(line)
    local file, size = opened()
    if size > MAX_BYTES then
        file:close()
        os.rename(FILE, OLD)
        file, size = opened()
    end
    if file == nil then return end
    if size <= MAX_BYTES then file:write(line) end
    file:close()
end

-- The job's owner, not its submitter: administrators and gateways submit for others.
local function owner(job, uid)
    local found = job.user_id
    -- 65534 is the user nobody, not a missing value.
    if found == nil or found >= 4294967294 then found = uid end
    return string.format("%d", found)
end

local function line_of(fields, last)
    return table.concat(fields, "\\t", 1, last) .. "\\n"
end

local function tell(fields)
    local line = line_of(fields, #fields)
    if #line > MAX_LINE_BYTES and #fields > N_FEW then line = line_of(fields, N_FEW) end
    if #line > MAX_LINE_BYTES then  -- only triggers a poll
        line = line_of({{"modify", fields[2], "", "", ""}}, 5)
    end
    write(line)
end

local function submitted(job, uid)
    tell({{
        "submit", string.format("%.0f", os.time()), owner(job, uid), text(job.partition),
        number(job.min_nodes), number(job.num_tasks), number(job.cpus_per_task),
        number(job.min_cpus), number(job.time_limit), text(job.features),
        text(job.req_nodes), text(job.tres_per_node), number(job.immediate),
        number(job.begin_time), text(job.dependency), number(job.priority),
        -- These are left out where the line would be too long; earlier releases told none of them.
        number(job.max_nodes), number(job.ntasks_per_node), number(job.pn_min_cpus),
        amount(job.min_mem_per_node), amount(job.min_mem_per_cpu), number(job.shared),
        text(job.tres_per_job), text(job.tres_per_socket), text(job.tres_per_task),
        text(job.cpus_per_tres), text(job.mem_per_tres), text(job.exc_nodes),
        text(job.reservation), text(job.prefer), number(job.time_min),
        number(job.contiguous), number(job.req_switch), number(job.reboot),
    }})
end

local function modified(record)
    tell({{
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

-- When Slurm loads this script: creates the file, which shows that the hook is active.
pcall(write, "")
return slurm.SUCCESS
"""

_EPILOG = """\
#!/bin/sh
# Notifies bftrainer of every ended job: one line in the file of {lua_name}.
PATH=/usr/bin:/bin LC_ALL=C
export PATH LC_ALL
# A line break would begin another line, and a tab another field.
case "$SLURM_JOB_ID$SLURM_JOB_PARTITION$SLURM_JOB_NODELIST" in
    *[[:cntrl:]]*) SLURM_JOB_ID= SLURM_JOB_PARTITION= SLURM_JOB_NODELIST= ;;
esac
file='{file}'
[ -f "$file" ] && [ ! -L "$file" ] && [ -O "$file" ] || exit 0
if [ "$(wc -c < "$file")" -gt {max_bytes} ]; then
    mv -f "$file" "$file{old}" || exit 0
    (set -C; echo '{first_line}' > "$file")
fi 2>/dev/null
printf 'end\\t%s\\t%s\\t%s\\t%s\\n' "$(date +%s)" "$SLURM_JOB_ID" "$SLURM_JOB_PARTITION" \\
    "$SLURM_JOB_NODELIST" |
    dd of="$file" bs=64k iflag=fullblock oflag=append,nofollow,nonblock conv=notrunc,nocreat \\
        2>/dev/null
exit 0
"""
RELAY_SERVICE_NAME: Final = "bftrainer-hook-relay.service"
RELAY_PROGRAM: Final = "/opt/bftrainer/bin/bftrainer-slurm-hook"  # of the packages
RELAY_KEY_FILE: Final = Path("/var/lib/bftrainer-hook-relay/key")
_SERVICE = """\
# On each host of a controller that is not the daemon's. Changes of yours:
# systemctl edit {name}
[Unit]
Description=bftrainer: tells the daemon's host of Slurm's jobs
After=network-online.target nss-user-lookup.target
Wants=network-online.target
# It tries again for ever; meanwhile the daemon polls.
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={program} --relay {endpoint} --daemon-key {daemon_key} \\
    --key {key_file} --file {file} --directory {directory}
# It reads the hook's file and slurm.conf, and writes nothing.
User={account}
StateDirectory=bftrainer-hook-relay
StateDirectoryMode=0700
UMask=0077
Restart=always
RestartSec=5
LimitCORE=0
MemoryMax=256M

NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=read-only
{confined}{unprivileged}
[Install]
WantedBy=multi-user.target
"""


def lua(file: Path) -> str:
    """Return ``job_submit.lua``, which appends to ``file``."""
    return _filled(_LUA, file)


def epilog(file: Path) -> str:
    """Return the script for ``EpilogSlurmctld``."""
    return _filled(_EPILOG, file)


def _filled(script: str, file: Path) -> str:
    return script.format(
        file=_quotable(file),
        old=OLD,
        first_line=FIRST_LINE,
        lua_name=LUA_NAME,
        max_bytes=MAX_BYTES,
        max_line_bytes=MAX_LINE_BYTES,
        n_few=N_FEW,
    )


def settings(directory: Path) -> dict[str, str]:
    """Return the lines of slurm.conf that use the scripts in this directory."""
    return {"JobSubmitPlugins": "lua", "EpilogSlurmctld": str(directory / EPILOG_NAME)}


def install(directory: Path, file: Path) -> tuple[Path, Path]:
    """Write both scripts into a directory; return their paths.

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
    if not file.is_absolute() or set(name) & set("'\"\\\n") or not name.isprintable():
        raise ValueError(f"{name!r} cannot be used in a script: use a plain absolute path")
    return name


def relay_service(
    *, endpoint: str, daemon_key: str, file: Path, directory: Path, account: str, **others: object
) -> str:
    """Return the unit.

    Args:
        endpoint: of the daemon, tcp://HOST:PORT.
        daemon_key: its public key, in hexadecimal.
        file: the hook's.
        directory: of slurm.conf.
        account: runs it; may read the file, and owns the key.
        others: ``program`` (``bftrainer-slurm-hook`` there) and ``key_file`` (``--make-key``).
    """
    fixed = {"name": RELAY_SERVICE_NAME, "confined": CONFINED, "unprivileged": UNPRIVILEGED}
    usual = {"program": RELAY_PROGRAM, "key_file": RELAY_KEY_FILE, **others}
    values = {"endpoint": endpoint, "daemon_key": daemon_key, "file": file, "account": account}
    return _SERVICE.format(directory=directory, **values, **usual, **fixed)


def relay_file(
    options: Mapping[str, Any], *, file: Path, directory: Path, account: str
) -> SiteFile | None:
    """Return the unit for each controller's host; None: the policy names no relays.

    ``options`` of the adapter, as they were given; the rest as for ``relay_service``.
    """
    port = str(options.get("hook_relay", "")).rpartition(":")[2]
    if not port:
        return None
    text = relay_service(
        endpoint=f"tcp://DAEMON_HOST:{port}",
        daemon_key="DAEMON_KEY",
        file=file,
        directory=directory,
        account=account,
    )
    return SiteFile(
        name=RELAY_SERVICE_NAME,
        text=text,
        about=f"on each controller's host, /etc/systemd/system/{RELAY_SERVICE_NAME}, with the "
        "daemon's host and public key in place of DAEMON_HOST and DAEMON_KEY "
        f"(bftrainer-slurm-hook --make-key {options.get('hook_relay_key_file')})",
    )

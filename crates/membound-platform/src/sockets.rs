//! Sockets of processes.

use std::collections::HashSet;
use std::os::fd::RawFd;

use rustix::io::Errno;
use rustix::net::sockopt::socket_acceptconn;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::Root;

/// Descriptors of a process that are read at most.
const MAX_DESCRIPTORS: usize = 1024;

/// True if a process accepts connections: it has a TCP or Unix socket that listens. False where the kernel
/// does not show its descriptors.
#[must_use]
pub fn accepts_connections(root: &Root, pid: u32) -> bool {
    let (descriptors, inodes) = sockets(root, pid);
    if descriptors.is_empty() {
        return false;
    }
    let asked = root.is_system().then(|| one_listens(pid, &descriptors));
    asked.flatten().unwrap_or_else(|| {
        // The kernel takes ten milliseconds to write its tables, however few sockets there are.
        let listening = listening(root, pid);
        inodes.iter().any(|inode| listening.contains(inode))
    })
}

/// The descriptors of a process that are sockets, and their inodes.
fn sockets(root: &Root, pid: u32) -> (Vec<RawFd>, Vec<String>) {
    let place = format!("proc/{pid}/fd");
    let numbers = root.numbered(&place, "").into_iter();
    numbers
        .take(MAX_DESCRIPTORS)
        .filter_map(|number| {
            let target = root.link(format!("{place}/{number}")).ok()?;
            let target = target.to_str()?;
            let inode = target.strip_prefix("socket:[")?.strip_suffix(']')?;
            Some((RawFd::try_from(number).ok()?, inode.to_owned()))
        })
        .unzip()
}

/// Whether one of these sockets of a process listens; `None` if the kernel does not permit to ask.
fn one_listens(pid: u32, descriptors: &[RawFd]) -> Option<bool> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    for &descriptor in descriptors {
        match pidfd_getfd(&process, descriptor, PidfdGetfdFlags::empty()) {
            Ok(socket) if socket_acceptconn(&socket).unwrap_or(false) => return Some(true),
            // One that was closed meanwhile does not listen.
            Ok(_) | Err(Errno::BADF) => {}
            Err(_) => return None,
        }
    }
    Some(false)
}

/// Inodes of the listening sockets in the network namespace of a process.
fn listening(root: &Root, pid: u32) -> HashSet<String> {
    // Fields of a line: state and inode in `tcp`, flags and inode in `unix`.
    const TABLES: [(&str, usize, &str, usize); 3] = [
        ("tcp", 3, "0A", 9),
        ("tcp6", 3, "0A", 9),
        ("unix", 3, "00010000", 6),
    ];
    let mut inodes = HashSet::new();
    for (table, state, listens, inode) in TABLES {
        let text = root
            .read(format!("proc/{pid}/net/{table}"))
            .unwrap_or_default();
        for line in text.lines() {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            if fields.get(state) == Some(&listens)
                && let Some(inode) = fields.get(inode)
            {
                inodes.insert((*inode).to_owned());
            }
        }
    }
    inodes
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::testing::Tree;

    const TCP: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
        \x20  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1\n\
        \x20  1: 0100007F:1F91 0100007F:8000 01 00000000:00000000 00:00000000 00000000     0        0 4712 1\n";
    const UNIX: &str = "Num       RefCount Protocol Flags    Type St Inode Path\n\
        0000000000000000: 00000002 00000000 00010000 0001 01 4801 /run/it\n\
        0000000000000000: 00000003 00000000 00000000 0001 03 4802\n";

    fn process(socket: &str) -> bool {
        let tree = Tree::new()
            .file("proc/7/net/tcp", TCP)
            .file("proc/7/net/unix", UNIX)
            .link("proc/7/fd/0", "/dev/null")
            .link("proc/7/fd/3", socket);
        accepts_connections(&tree.root(), 7)
    }

    #[test]
    fn a_process_with_a_listening_socket_accepts_connections() {
        assert!(process("socket:[4711]"));
        assert!(process("socket:[4801]"));
        assert!(!process("socket:[4712]"));
        assert!(!process("socket:[4802]"));
        assert!(!process("pipe:[4711]"));
        assert!(!accepts_connections(&Tree::new().root(), 7));
    }

    #[test]
    fn the_kernel_shows_listening_sockets_of_this_process() {
        let own = std::process::id();
        let connected = std::os::unix::net::UnixStream::pair().expect("there are descriptors");
        let (descriptors, _) = sockets(&Root::system(), own);
        assert!(descriptors.contains(&connected.0.as_raw_fd()));
        assert_eq!(one_listens(own, &[connected.0.as_raw_fd()]), Some(false));
        let tcp = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        assert!(accepts_connections(&Root::system(), own));
        drop(tcp);
        let place = tempfile::tempdir().expect("there is room");
        let unix = UnixListener::bind(place.path().join("it")).expect("the name is free");
        assert!(accepts_connections(&Root::system(), own));
        drop(unix);
    }
}

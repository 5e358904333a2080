//! Tests of the calls that only Linux has, and of the refusal to start a server elsewhere.

use super::*;

#[cfg(all(target_os = "linux", not(fastchangelog_portable)))]
mod on_linux {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_wake_stays_readable() {
        let wake = Wake::new().unwrap();
        let readable = || {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            poll(&mut [PollFd::new(&wake, PollFlags::IN)], Some(&now)).unwrap()
        };
        assert_eq!(readable(), 0);
        wake.wake();
        wake.wake();
        assert_eq!((readable(), readable()), (1, 1));
    }

    #[test]
    fn the_peer_of_a_pair_is_this_user() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(peer_user(&one).unwrap(), rustix::process::geteuid());
    }
}

#[cfg(not(all(target_os = "linux", not(fastchangelog_portable))))]
mod elsewhere {
    use super::*;
    use fastchangelog_format::ErrorKind;

    #[test]
    fn no_server_starts_and_the_error_says_what_works() {
        let error = Wake::new().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("on Linux only"), "{error}");
        assert!(error.remedy().unwrap().contains("embedded states"), "{error}");
    }
}

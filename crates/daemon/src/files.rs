//! How many files and connections a daemon may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What a daemon needs: its connections, its threads' own files, and the visitors of its page.
const NEEDED: u64 = 128;

/// Raises the limit as far as the system allows.
///
/// # Errors
/// It is too low even so. A daemon would then lack connections here and there, and look healthy.
pub fn raise_limit() -> Result<(), String> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // Refused where a sandbox forbids it: then the limit stays.
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok();
    let allowed = if raised { maximum } else { current };
    enough(allowed)
}

/// `None` is no limit.
fn enough(allowed: Option<u64>) -> Result<(), String> {
    match allowed {
        Some(allowed) if allowed < NEEDED => Err(format!(
            "this process may have {allowed} files and connections open, and needs {NEEDED}; raise the limit \
             (`ulimit -n 1024`, or LimitNOFILE=1024 in a systemd unit)"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_too_low_is_named() {
        assert_eq!((enough(None), enough(Some(NEEDED))), (Ok(()), Ok(())));
        assert!(enough(Some(20)).unwrap_err().contains("may have 20 files"));
    }
}

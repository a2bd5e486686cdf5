//! Stacks of simulated threads, and what happens when one overflows.
//!
//! Every stack ends in a guard page. A fault on the guard page of the running simulated thread is reported by a signal
//! handler, on its alternate stack, with the thread's name and the seed; every other fault goes to the handler that
//! was there before.

use super::WORLD;
use corosensei::stack::{DefaultStack, Stack};
use std::cell::{Cell, RefCell};
use std::sync::OnceLock;

/// Stacks kept for reuse by each OS thread.
const KEEP: usize = 64;

thread_local! {
    static POOL: RefCell<(usize, Vec<DefaultStack>)> = const { RefCell::new((0, Vec::new())) };
    /// This OS thread's alternate signal stack has been looked after.
    static ALTERNATE: Cell<bool> = const { Cell::new(false) };
}

/// A stack of `size` bytes.
pub(super) fn take(size: usize) -> DefaultStack {
    let pooled = POOL.with(|p| {
        let mut p = p.borrow_mut();
        if p.0 != size {
            *p = (size, Vec::new());
        }
        p.1.pop()
    });
    pooled.unwrap_or_else(|| {
        DefaultStack::new(size).unwrap_or_else(|e| {
            panic!("cannot map a stack of {size} bytes: {e}; lower the stack size or the number of threads")
        })
    })
}

/// Takes back a stack whose thread has ended.
pub(super) fn give_back(size: usize, stack: DefaultStack) {
    POOL.with(|p| {
        let mut p = p.borrow_mut();
        if p.0 == size && p.1.len() < KEEP {
            p.1.push(stack);
        }
    });
}

fn page_size() -> usize {
    // SAFETY: a query without arguments in memory.
    let n = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(n).expect("a page size")
}

/// The lowest usable address of a stack: the guard page lies below.
pub(super) fn low(stack: &DefaultStack) -> usize {
    stack.limit().get() + page_size()
}

/// The handlers that were there before ours, for SIGSEGV and SIGBUS.
static BEFORE: OnceLock<[libc::sigaction; 2]> = OnceLock::new();

/// Installs the handler, once per process, and an alternate stack, once per OS thread.
pub(super) fn install_overflow_handler() {
    if !ALTERNATE.with(|a| a.replace(true)) {
        ensure_alternate_stack();
    }
    BEFORE.get_or_init(|| {
        [libc::SIGSEGV, libc::SIGBUS].map(|signal| {
            // SAFETY: both structures are plain data, fully initialised before use, and `on_fault` has the signature
            // that SA_SIGINFO asks for.
            unsafe {
                let mut ours: libc::sigaction = std::mem::zeroed();
                let mut before: libc::sigaction = std::mem::zeroed();
                ours.sa_sigaction = on_fault as *const () as usize;
                ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigemptyset(&raw mut ours.sa_mask);
                libc::sigaction(signal, &raw const ours, &raw mut before);
                before
            }
        })
    });
}

/// The standard library gives its threads an alternate stack; a thread made otherwise gets one here.
fn ensure_alternate_stack() {
    const SIZE: usize = 64 << 10;
    // SAFETY: `sigaltstack` reads and writes the given structures only; the mapping made for the stack is never freed,
    // as the thread may fault until its last instruction.
    unsafe {
        let mut have: libc::stack_t = std::mem::zeroed();
        if libc::sigaltstack(std::ptr::null(), &raw mut have) != 0 || have.ss_flags & libc::SS_DISABLE == 0 {
            return;
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let memory = libc::mmap(std::ptr::null_mut(), SIZE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if memory != libc::MAP_FAILED {
            let stack = libc::stack_t { ss_sp: memory, ss_flags: 0, ss_size: SIZE };
            libc::sigaltstack(&raw const stack, std::ptr::null_mut());
        }
    }
}

extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `info`; the world and its current thread, if set, are in place while a
    // simulated thread runs, which is where we were interrupted; `write` and `abort` may be called in handlers.
    unsafe {
        let address = (*info).si_addr() as usize;
        if let Some(w) = WORLD.with(Cell::get).as_ref()
            && let Some(t) = w.current.get().as_ref()
            && address < t.stack_low
            && address >= t.stack_low - page_size()
        {
            let mut digits = [0u8; 20];
            let parts: [&[u8]; 5] = [
                b"varve: stack overflow in simulated thread '",
                t.name.as_bytes(),
                b"', seed ",
                decimal(w.config.seed, &mut digits),
                b"; a larger stack is set by varve_rt::set_stack_size\n",
            ];
            for part in parts {
                libc::write(2, part.as_ptr().cast(), part.len());
            }
            libc::abort();
        }
        chain(signal, info, context);
    }
}

/// Hands a fault that is not ours to the handler before us.
///
/// # Safety
/// To be called from a signal handler with its arguments.
unsafe fn chain(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = BEFORE.get().map(|b| b[usize::from(signal == libc::SIGBUS)]);
    // SAFETY: as the caller promises; the earlier handler was installed with the signature its flags tell.
    unsafe {
        match before {
            Some(b) if b.sa_sigaction != libc::SIG_DFL && b.sa_sigaction != libc::SIG_IGN => {
                if b.sa_flags & libc::SA_SIGINFO != 0 {
                    let f: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                        std::mem::transmute(b.sa_sigaction);
                    f(signal, info, context);
                } else {
                    let f: extern "C" fn(i32) = std::mem::transmute(b.sa_sigaction);
                    f(signal);
                }
            }
            _ => {
                // Returning repeats the fault, now with the default action.
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }
}

/// `n` in decimal, without allocating.
fn decimal(mut n: u64, into: &mut [u8; 20]) -> &[u8] {
    let mut i = into.len();
    loop {
        i -= 1;
        into[i] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            return &into[i..];
        }
    }
}

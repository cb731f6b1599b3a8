"""``errno``: an error return as its name (ENOENT), ``ok`` for other values from 0 on."""

from kprobe_exporter.model.values import MAX_ERRNO, Decoder, Value

NAMES = dict(
    enumerate(
        """
        EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT
        ENOTBLK EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG
        ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY
        ELOOP - ENOMSG EIDRM ECHRNG EL2NSYNC EL3HLT EL3RST ELNRNG EUNATCH ENOCSI EL2HLT EBADE EBADR
        EXFULL ENOANO EBADRQC EBADSLT - EBFONT ENOSTR ENODATA ETIME ENOSR ENONET ENOPKG EREMOTE
        ENOLINK EADV ESRMNT ECOMM EPROTO EMULTIHOP EDOTDOT EBADMSG EOVERFLOW ENOTUNIQ EBADFD EREMCHG
        ELIBACC ELIBBAD ELIBSCN ELIBMAX ELIBEXEC EILSEQ ERESTART ESTRPIPE EUSERS ENOTSOCK
        EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP
        EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET
        ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ESHUTDOWN ETOOMANYREFS ETIMEDOUT
        ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY EINPROGRESS ESTALE EUCLEAN ENOTNAM ENAVAIL
        EISNAM EREMOTEIO EDQUOT ENOMEDIUM EMEDIUMTYPE ECANCELED ENOKEY EKEYEXPIRED EKEYREVOKED
        EKEYREJECTED EOWNERDEAD ENOTRECOVERABLE ERFKILL EHWPOISON """.split(),
        start=1,
    )
)
"""The kernel's numbers, include/uapi/asm-generic/errno-base.h and errno.h."""

NAMES |= dict(
    enumerate(
        """
        ERESTARTSYS ERESTARTNOINTR ERESTARTNOHAND ENOIOCTLCMD ERESTART_RESTARTBLOCK EPROBE_DEFER
        EOPENSTALE ENOPARAM
        """.split(),
        start=512,
    )
)
NAMES |= dict(
    enumerate(
        """
        EBADHANDLE ENOTSYNC EBADCOOKIE ENOTSUPP ETOOSMALL ESERVERFAULT EBADTYPE EJUKEBOX EIOCBQUEUED
        ERECALLCONFLICT ENOGRACE
        """.split(),
        start=521,
    )
)
"""Errors that are used only inside the kernel, include/linux/errno.h."""

NAMES = {number: name for number, name in NAMES.items() if name != "-"}


def name_of(number: int) -> str | None:
    """Return the name of a positive error number, None if the kernel has none."""
    return NAMES.get(number)


def decoder(options: object) -> Decoder:
    """Make the decoder, which takes no options. -4095 … -1 are errors, also if read as unsigned numbers."""
    if options is not None:
        raise ValueError("the decoder errno takes no options: write 'decode: errno'")
    return decode


def decode(value: Value) -> str | None:
    if not isinstance(value, int):
        return None
    for wrap in (0, 1 << 32, 1 << 64):
        if wrap - MAX_ERRNO <= value < wrap:
            return NAMES.get(wrap - value)
    return "ok" if value >= 0 else None

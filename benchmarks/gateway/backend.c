// An OpenAI backend that costs next to nothing: one thread, epoll, HTTP/1.1 keep-alive, canned answers in vLLM's shape.
//
// usage: backend PORT EVENTS INTERVAL_US FIRST_US
//
// A POST whose body says "stream": true gets EVENTS events, one write each, INTERVAL_US apart, the first after FIRST_US;
// then, if the body asks for it, the usage event; then [DONE]. Any other POST gets a small JSON body at once, any GET 200.
// Every event carries its time of sending ("ts", CLOCK_MONOTONIC ns), so that a client can tell how long it took.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define READ_BYTES 65536

typedef struct Connection {
  int fd;
  char *data;
  size_t length, capacity;
  int streaming, sent, wants_usage;
  uint64_t due;
  struct Connection *next, *previous;
} Connection;

static int events, interval_us, first_us;
static Connection *active;

static const char HEAD[] =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
static const char USAGE[] =
    "data: {\"id\":\"chatcmpl-7f3a9c51e2b84d06\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,"
    "\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":64,\"total_tokens\":128,\"completion_tokens\":64,"
    "\"prompt_tokens_details\":{\"cached_tokens\":0}}}\n\n";
static const char WHOLE[] =
    "{\"id\":\"chatcmpl-7f3a9c51e2b84d06\",\"object\":\"chat.completion\",\"created\":1760000000,\"model\":\"m\","
    "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"The quick brown fox jumps over the lazy "
    "dog, twice.\"},\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":64,\"completion_tokens\":"
    "16,\"total_tokens\":80,\"prompt_tokens_details\":{\"cached_tokens\":0}}}";

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int put(int fd, const char *data, size_t length) {
  while (length) {
    ssize_t n = write(fd, data, length);
    if (n < 0 && errno == EAGAIN) {
      struct pollfd writable = {.fd = fd, .events = POLLOUT};
      if (poll(&writable, 1, 5000) <= 0) return -1;
    } else if (n < 0) {
      return -1;
    } else {
      data += n;
      length -= (size_t)n;
    }
  }
  return 0;
}

static int put_chunk(int fd, const char *data, size_t length, int last) {
  char chunk[1024];
  int n = snprintf(chunk, sizeof chunk, "%zx\r\n%.*s\r\n%s", length, (int)length, data, last ? "0\r\n\r\n" : "");
  return put(fd, chunk, (size_t)n);
}

// One event; 1 when the stream is over, -1 when the client is gone.
static int put_event(Connection *c) {
  char data[768];
  int n;
  if (c->sent < events) {
    n = snprintf(data, sizeof data,
                 "data: {\"id\":\"chatcmpl-7f3a9c51e2b84d06\",\"object\":\"chat.completion.chunk\",\"created\":1760000000,"
                 "\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token%d\"},\"logprobs\":null,"
                 "\"finish_reason\":%s}],\"ts\":1%019llu}\n\n",
                 c->sent, c->sent == events - 1 ? "\"stop\"" : "null", (unsigned long long)now_ns());
    c->sent++;
    return put_chunk(c->fd, data, (size_t)n, 0);
  }
  if (c->wants_usage && put_chunk(c->fd, USAGE, sizeof USAGE - 1, 0)) return -1;
  return put_chunk(c->fd, "data: [DONE]\n\n", 14, 1) ? -1 : 1;
}

static void start_stream(Connection *c) {
  c->streaming = 1;
  c->sent = 0;
  c->due = now_ns() + (uint64_t)first_us * 1000u;
  c->previous = NULL;
  c->next = active;
  if (active) active->previous = c;
  active = c;
}

static void stop_stream(Connection *c) {
  c->streaming = 0;
  if (c->previous) c->previous->next = c->next;
  else active = c->next;
  if (c->next) c->next->previous = c->previous;
}

static void drop(Connection *c) {
  if (c->streaming) stop_stream(c);
  close(c->fd);
  free(c->data);
  free(c);
}

static int says(const char *body, size_t length, const char *field) {
  const char *found = memmem(body, length, field, strlen(field));
  if (!found) return 0;
  found += strlen(field);
  while (found < body + length && (*found == ' ' || *found == ':')) found++;
  return found + 4 <= body + length && !memcmp(found, "true", 4);
}

static int answer_whole(int fd, const char *body, size_t length) {
  char reply[1024];
  int n = snprintf(reply, sizeof reply,
                   "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%.*s", length,
                   (int)length, body);
  return put(fd, reply, (size_t)n);
}

// Answer the complete requests in the buffer; -1 to close. While a stream runs, the next request waits.
static int serve(Connection *c) {
  while (!c->streaming) {
    char *end = memmem(c->data, c->length, "\r\n\r\n", 4);
    if (!end) return 0;
    size_t head = (size_t)(end - c->data) + 4, body = 0;
    *end = 0;
    char *field = strcasestr(c->data, "\r\ncontent-length:");
    if (field) body = strtoul(field + 17, NULL, 10);
    int chunked = !field && strcasestr(c->data, "transfer-encoding: chunked");
    *end = '\r';
    if (chunked) {
      char *last = memmem(c->data + head, c->length - head, "\r\n0\r\n\r\n", 7);
      if (!last) return 0;
      body = (size_t)(last + 7 - c->data) - head;
    }
    if (c->length < head + body) return 0;
    int post = !strncmp(c->data, "POST", 4);
    int stream = post && says(c->data + head, body, "\"stream\"");
    c->wants_usage = stream && says(c->data + head, body, "\"include_usage\"");
    memmove(c->data, c->data + head + body, c->length - head - body);
    c->length -= head + body;
    if (stream) {
      if (put(c->fd, HEAD, sizeof HEAD - 1)) return -1;
      start_stream(c);
    } else if (post ? answer_whole(c->fd, WHOLE, sizeof WHOLE - 1) : answer_whole(c->fd, "{}", 2)) {
      return -1;
    }
  }
  return 0;
}

static int fill(Connection *c) {
  for (;;) {
    if (c->length + READ_BYTES > c->capacity) {
      c->capacity = c->capacity * 2 + READ_BYTES;
      c->data = realloc(c->data, c->capacity + 1);
    }
    ssize_t n = read(c->fd, c->data + c->length, READ_BYTES);
    if (n > 0) c->length += (size_t)n;
    if (n == READ_BYTES) continue;
    return n > 0 || (n < 0 && errno == EAGAIN) ? 0 : -1;
  }
}

static void accept_all(int listener, int poller) {
  int fd, one = 1;
  while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    Connection *c = calloc(1, sizeof *c);
    c->fd = fd;
    struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &wanted);
  }
}

static void send_due(void) {
  uint64_t now = now_ns();
  for (Connection *c = active, *next; c; c = next) {
    next = c->next;
    if (c->due > now) continue;
    c->due += (uint64_t)interval_us * 1000u;
    if (c->due + 20000000u < now) c->due = now;  // late by more than 20 ms: do not catch up in a burst
    int over = put_event(c);
    if (over) stop_stream(c);
    if (over < 0 || (over && serve(c) < 0)) shutdown(c->fd, SHUT_RDWR);
  }
}

static int wait_ms(void) {
  if (!active) return -1;
  uint64_t now = now_ns(), soonest = UINT64_MAX;
  for (Connection *c = active; c; c = c->next)
    if (c->due < soonest) soonest = c->due;
  return soonest <= now ? 0 : (int)((soonest - now + 999999u) / 1000000u);
}

int main(int argc, char **argv) {
  if (argc != 5) {
    fprintf(stderr, "usage: backend PORT EVENTS INTERVAL_US FIRST_US\n");
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  events = atoi(argv[2]);
  interval_us = atoi(argv[3]);
  first_us = atoi(argv[4]);
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1]))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (bind(listener, (void *)&address, sizeof address) || listen(listener, 1024)) {
    perror("backend");
    return 1;
  }
  int poller = epoll_create1(0);
  struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = NULL}, ready[256];
  epoll_ctl(poller, EPOLL_CTL_ADD, listener, &wanted);
  for (;;) {
    int count = epoll_wait(poller, ready, 256, wait_ms());
    for (int i = 0; i < count; i++) {
      Connection *c = ready[i].data.ptr;
      if (!c) accept_all(listener, poller);
      else if (fill(c) || serve(c)) drop(c);
    }
    send_due();
  }
}

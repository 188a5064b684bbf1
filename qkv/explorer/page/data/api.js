// Requests to the explorer's server; every failure becomes an Error whose message is one sentence to show.

const SERVER_GONE = "The server does not answer; start qkv look again.";

export class RequestError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Create the functions that ask the server, with the token of this session. */
export function createApi(token) {
  async function send(name, parameters, options) {
    const query = new URLSearchParams({ ...parameters, token });
    let response;
    try {
      response = await fetch(`api/${name}?${query}`, options);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new RequestError(SERVER_GONE, 0);
    }
    if (!response.ok) throw new RequestError(await readError(response), response.status);
    return response;
  }

  async function post(name, body) {
    const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
    return (await send(name, {}, options)).json();
  }

  return {
    postTrace: body => post("trace", body),
    postStep: body => post("step", body),
    postBeams: body => post("beams", body),
    /** The name that other requests give to a picture file. */
    async postImage(file) {
      return (await (await send("image", {}, { method: "POST", body: file })).json()).image;
    },
    async getPatterns(size) {
      return (await send("patterns", { size })).json();
    },
    /** Weights as {shape: [heads, rows, columns], data: Uint16Array}. */
    async getWeights(parameters) {
      const response = await send("weights", parameters);
      const shape = response.headers.get("X-Shape").split(",").map(Number);
      return { shape, data: new Uint16Array(await response.arrayBuffer()) };
    },
    /** The parts of one query's scores: {scale, parts: [{name, shape, data}]}. */
    async getNeurons(parameters) {
      const response = await send("neurons", parameters);
      const values = new Float32Array(await response.arrayBuffer());
      let start = 0;
      const parts = JSON.parse(response.headers.get("X-Parts")).map(({ name, shape }) => {
        const size = shape.reduce((product, length) => product * length, 1);
        start += size;
        return { name, shape, data: values.subarray(start - size, start) };
      });
      return { scale: Number(response.headers.get("X-Scale")), parts };
    },
  };
}

async function readError(response) {
  try {
    return (await response.json()).error;
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}
